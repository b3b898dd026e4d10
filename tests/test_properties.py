"""properties: what a line of a configuration file means, or the sentence that says why it means nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from corelane.errors import ConfigError
from corelane.properties import Entry, as_line, parse_properties


def values(text: str | bytes) -> dict[str, str]:
    data = text if isinstance(text, bytes) else text.encode()
    return {key: entry.value for key, entry in parse_properties(data, "config.properties").items()}


def refusal(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        values(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("k=2\n", "2", id="plain"),
        pytest.param("k=2", "2", id="no-last-newline"),
        pytest.param(b"\xef\xbb\xbfk=2\n", "2", id="byte-order-mark"),
        pytest.param("k=2\r\nother=3\r\n", "2", id="crlf"),
        pytest.param("k = 2", "2", id="blanks-around-equals"),
        pytest.param(" \tk\t=\t2 \t", "2", id="tabs"),
        pytest.param("export k=2", "2", id="export"),
        pytest.param('export k="inf2"', "inf2", id="export-and-double-quotes"),
        pytest.param('k="in f2"', "in f2", id="double-quotes"),
        pytest.param("k='inf2'", "inf2", id="single-quotes"),
        pytest.param("k=''", "", id="empty-quotes"),
        pytest.param("k=", "", id="empty"),
        pytest.param("k=2 # two cores", "2", id="trailing-comment"),
        pytest.param("k=2\t# two cores", "2", id="trailing-comment-after-tab"),
        pytest.param("k= # nothing", "", id="only-a-comment"),
        pytest.param("k='2' # two", "2", id="comment-after-quotes"),
        pytest.param("k='a # b'", "a # b", id="hash-in-quotes"),
        pytest.param("k=bert#inf", "bert#inf", id="hash-in-a-word"),
        pytest.param("k=#inf", "#inf", id="hash-first"),
        pytest.param("k=registry.example/team%2Frepo", "registry.example/team%2Frepo", id="percent"),
        pytest.param("k=%(asctime)s %(message)s", "%(asctime)s %(message)s", id="percent-format"),
        pytest.param("k=%%", "%%", id="two-percents"),
        pytest.param("k=5$ or $$", "5$ or $$", id="lone-dollar"),
        pytest.param("k='pa$$w${B}rd`x`'", "pa$$w${B}rd`x`", id="shell-in-single-quotes"),
        pytest.param("k=a=b", "a=b", id="equals-in-value"),
        pytest.param("k: host.example:5000/x", "host.example:5000/x", id="colon-keeps-the-port"),
        pytest.param("k=host.example:5000/x", "host.example:5000/x", id="port"),
        pytest.param("k=model_a,\\\n  model_b", "model_a,model_b", id="continued"),
        pytest.param("k=model_a,\\\r\n  model_b # two\r\n", "model_a,model_b", id="continued-crlf-comment"),
        pytest.param('k={"a": \\\n  1}', '{"a": 1}', id="continued-json"),
        pytest.param("k=a\\\\\nother=b", "a\\\\", id="two-backslashes-end-a-value"),
        pytest.param('k="C:\\models\\"', "C:\\models\\", id="backslash-before-a-quote"),
        pytest.param("k=C:\\models\\x", "C:\\models\\x", id="backslashes-are-literal"),
        pytest.param("k=it's", "it's", id="apostrophe"),
        pytest.param("k=Grüße 東京 🙂", "Grüße 東京 🙂", id="unicode"),
        pytest.param("#!/bin/bash\n# c\n! c\n\n   \n  # c\nk=2", "2", id="comments-and-blank-lines"),
        pytest.param("# ends in a backslash \\\nk=2", "2", id="comments-are-not-continued"),
    ],
)
def test_a_value_is_read_as_it_was_meant(text: str | bytes, value: str) -> None:
    """Editors, shells and Java write these forms; each has one meaning here."""
    assert values(text)["k"] == value


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param("a=1\nk=${registry}/x", 2, "nothing is expanded", id="braces"),
        pytest.param('k="${B}"', 1, "nothing is expanded", id="braces-in-double-quotes"),
        pytest.param("k=$HOME/models", 1, "nothing is expanded", id="dollar-name"),
        pytest.param("k=$(aws sts)", 1, "nothing is expanded", id="command"),
        pytest.param("k=`id`", 1, "nothing is expanded", id="backquotes"),
        pytest.param("k=${a}'-trace'", 1, "nothing is expanded", id="half-quoted-expansion"),
        pytest.param("a=1\n\nk+='-fastapi'", 3, "k+=", id="append"),
        pytest.param('if [ "${A}" == "" ]; then', 1, "shell code", id="if"),
        pytest.param("fi", 1, "shell code", id="fi"),
        pytest.param("source .env", 1, "shell code", id="source"),
        pytest.param(". .env", 1, "shell code", id="dot"),
        pytest.param("cp ../.env ./", 1, "shell code", id="command-line"),
        pytest.param("export k", 1, "shell code", id="export-of-nothing"),
        pytest.param("export a=1 b=2", 1, "put quotes", id="two-exports-in-one-line"),
        pytest.param("num_cores 2", 1, "no setting", id="no-separator"),
        pytest.param("=2", 1, "no setting", id="no-key"),
        pytest.param('k="inf2', 1, "nothing closes it", id="open-quote"),
        pytest.param("k='a'-b", 1, "follows the closing quote", id="half-quoted"),
        pytest.param('k=a "b # c" d', 1, "quote the whole value", id="hash-in-inner-quotes"),
        pytest.param("k=1\na=2\nk=3", 3, "line 1", id="duplicate"),
        pytest.param("k=1\nk=1", 2, "line 1", id="duplicate-with-the-same-value"),
        pytest.param("k=a\\", 1, "no value follows", id="continued-at-the-end"),
        pytest.param("k=a\\\n# c\n", 1, "no value follows", id="continued-into-a-comment"),
        pytest.param("k=C:\\models\\\nnum_cores=4", 1, "the setting below", id="continued-over-a-setting"),
        pytest.param("k=a, \\ \n b", 1, "blanks follow", id="blank-after-the-backslash"),
        pytest.param("k=a # c \\\n b", 1, "a comment cannot be continued", id="continued-comment"),
        pytest.param("k=\\\n 'a'", 1, "in one line", id="continued-quotes"),
        pytest.param(b"k=1\nj=\x00", 2, "U+0000", id="nul"),
        pytest.param(b"k=1\nj=caf\xe9", 2, "0xe9 is not UTF-8", id="latin-1"),
        pytest.param("k=1\n".encode("utf-16"), 1, "not UTF-8", id="utf-16"),
        pytest.param("k=1\n".encode("utf-16-le"), 1, "U+0000", id="utf-16-without-mark"),
        pytest.param("k=1\rj=2\r", 1, "U+000D", id="old-mac-line-ends"),
        pytest.param("k=1\n\ufeffj=2", 2, "U+FEFF", id="byte-order-mark-of-a-joined-file"),
        pytest.param("k=1\u2028j=2", 1, "U+2028", id="line-separator"),
    ],
)
def test_what_could_be_misread_is_refused_with_file_line_and_reason(text: str | bytes, line: int, reason: str) -> None:
    """A guess would become a default, a half-expanded name or a lost key, far from the line that is wrong."""
    message = refusal(text)
    assert message.startswith(f"config.properties:{line}: ")
    assert reason in message


def test_an_entry_knows_the_line_of_its_key() -> None:
    """Messages point into the file, also after continued lines."""
    assert parse_properties(b"a=1,\\\n  2\nb=3", "x") == {"a": Entry("1,2", 1), "b": Entry("3", 3)}


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff"))
_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)


@st.composite
def _rendered(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """A file in any mixture of the allowed forms, and what it says."""
    meant = draw(st.dictionaries(_NAMES, _WORDS, max_size=6))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    blanks = st.text(" \t", max_size=2)
    lines = []
    for key, value in meant.items():
        marks = ["'"] if "'" not in value else []
        marks += ['"'] if '"' not in value and "$" not in value and "`" not in value else []
        if not marks:
            value = meant[key] = value.replace("'", "")
            marks = ["'"]
        mark = draw(st.sampled_from(marks))
        lines += draw(st.lists(st.sampled_from(["", "  ", "# comment = 1", "! comment \\"]), max_size=2))
        lead = draw(st.sampled_from(["", " ", "export "]))
        separator = draw(blanks) + draw(st.sampled_from("=:")) + draw(blanks)
        lines.append(f"{lead}{key}{separator}{mark}{value}{mark}{draw(st.sampled_from(['', ' ', ' # comment']))}")
    mark_bytes = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark_bytes + (end.join(lines) + draw(st.sampled_from(["", end]))).encode(), meant


@given(_rendered())
@hypothesis_settings(deadline=None, max_examples=300)
def test_every_quoted_text_comes_back_from_a_file(rendered: tuple[bytes, dict[str, str]]) -> None:
    """Quoting is the way to write any value at all, so it must have no exceptions."""
    data, meant = rendered
    assert values(data) == meant


@given(st.text("ab =:#'\"\\$`(){}\t!é", max_size=12))
@hypothesis_settings(deadline=None, max_examples=500)
def test_a_written_line_is_read_back_as_the_same_value(value: str) -> None:
    """Only a value that has all that forbids each way of quoting cannot be written, and that is said."""
    try:
        written = as_line("k", value)
    except ConfigError:
        assert "'" in value
        return
    assert values(written) == {"k": value}


@pytest.mark.parametrize(
    "value", ["a'\"`id`", "two\nlines", "half of a \ud800"], ids=["shell", "line-end", "surrogate"]
)
def test_a_value_that_no_line_can_hold_is_refused(value: str) -> None:
    """Before it is written, and read back as something else."""
    with pytest.raises(ConfigError, match=r"k=.* cannot be written into a file"):
        as_line("k", value)


@given(st.binary(max_size=200))
@hypothesis_settings(deadline=None, max_examples=500)
def test_any_bytes_are_read_or_refused_with_a_place(data: bytes) -> None:
    """No input ends in a traceback."""
    message = "f:"
    try:
        parse_properties(data, "f")
    except ConfigError as err:
        message = str(err)
    assert message.startswith("f:")


@given(st.text("ab =:#'\"\\$`\n\r\t!", max_size=40))
@hypothesis_settings(deadline=None, max_examples=500)
def test_any_text_of_special_characters_is_read_or_refused(text: str) -> None:
    """The same, dense in the characters that have a meaning; no value holds a line end."""
    message, found = "f:", {}
    try:
        found = parse_properties(text.encode(), "f")
    except ConfigError as err:
        message = str(err)
    assert message.startswith("f:")
    assert not any(end in entry.value for entry in found.values() for end in "\r\n")
