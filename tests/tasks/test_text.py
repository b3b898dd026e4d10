"""Texts as callers send them: what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from corelane.errors import BundleError, InvalidInputError
from corelane.tasks import text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (3, "the number 3"),
        pytest.param(10**5000, "a number out of range", id="number-too-long-to-print"),
        (float("nan"), "a number out of range"),
        (["a"], "an array"),
        ({"a": 1}, "an object"),
        ("x" * 99, '"' + "x" * 40 + '..."'),
    ],
)
def test_a_value_is_described_in_the_words_of_json(value: object, words: str) -> None:
    """Callers write JSON; the names of our classes mean nothing to them. Long values are not echoed whole."""
    assert words in text.describe(value)


@pytest.mark.parametrize("value", [None, True, 3, 2.5, [], {}])
def test_what_is_no_string_is_refused_with_its_field(value: object) -> None:
    """A null or a number in a text's place is the caller's mistake, never an exception of the tokenizer."""
    with pytest.raises(InvalidInputError, match="context must be a string, found ") as caught:
        text.require_text(value, "context")
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(("value", "place"), [("hi \ud800", 3), ("\udfff", 0), ("😀😀\ude00 x", 2)])
def test_half_a_surrogate_pair_is_refused_with_its_position(value: str, place: int) -> None:
    """JSON can spell it, UTF-8 cannot; the position counts code points, as all our offsets do."""
    with pytest.raises(InvalidInputError, match=rf"question .* at character {place},") as caught:
        text.require_text(value, "question")
    assert str(caught.value).encode()


def test_a_whole_pair_and_a_nul_are_text() -> None:
    """Both are valid Unicode, and what the tokenizer makes of them is its business."""
    assert text.require_text("\U0001f600 a\u0000b", "text") == "😀 a\0b"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1, "b": 2, "\ud800": 3}, r'unknown field "\ud800"; known are a, b, c'),
        ({"a": 1}, "has no b; it needs a and b"),
        (["a", "b"], "must be an object with a and b, found an array"),
        (None, "must be an object with a and b, found null"),
    ],
)
def test_an_object_has_exactly_the_fields_it_needs(value: object, words: str) -> None:
    """A misspelt field would else be ignored in silence. The sentence is valid UTF-8 whatever it names."""
    with pytest.raises(InvalidInputError) as caught:
        text.require_object(value, ("a", "b"), "an item", optional=("c",))
    assert words in str(caught.value)
    assert str(caught.value).encode()


def test_a_tokenizer_loses_the_padding_and_truncation_of_its_file(wordpiece: Path) -> None:
    """This file asks for both, to 128: padding is the runtime's here, and cutting the task's."""
    tokenizer = text.load_tokenizer(wordpiece)
    assert len(tokenizer.encode("one")) == 3
    assert len(tokenizer.encode("one " * 300)) == 302


def test_a_tokenizer_is_found_by_its_folder_too(wordpiece: Path) -> None:
    """A bundle names either."""
    assert text.load_tokenizer(wordpiece.parent).token_to_id("[CLS]") == 101


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_a_missing_or_damaged_tokenizer_is_the_bundles_fault(tmp_path: Path, content: bytes | None) -> None:
    """The server must end with the bundle's exit code, which is not restarted at once."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BundleError, match="cannot be read"):
        text.load_tokenizer(tmp_path / "tokenizer.json")


def test_an_input_that_no_tokenizer_gives_is_the_bundles_fault(wordpiece: Path) -> None:
    """Found at start, not with the first request."""
    with pytest.raises(BundleError, match="pixel_values"):
        text.require_fit(text.load_tokenizer(wordpiece), ("input_ids", "pixel_values"), 32)


def test_a_sequence_too_short_for_two_words_is_the_bundles_fault(wordpiece: Path) -> None:
    """`[CLS] a [SEP] b [SEP]` is the least there is to ask."""
    with pytest.raises(BundleError, match="takes 4 tokens and its tokenizer needs at least 5"):
        text.require_fit(text.load_tokenizer(wordpiece), ("input_ids",), 4)


@pytest.mark.parametrize(
    ("name", "content", "token"),
    [
        ("tokenizer_config.json", '{"cls_token": "[SEP]"}', 102),
        ("special_tokens_map.json", '{"cls_token": {"content": "[SEP]"}}', 102),
        ("tokenizer_config.json", "not JSON", 101),
        ("tokenizer_config.json", '{"cls_token": null}', 101),
    ],
)
def test_the_class_token_is_the_configured_one_else_the_usual(
    wordpiece: Path, tmp_path: Path, name: str, content: str, token: int
) -> None:
    """`tokenizer.json` itself does not say which of its special tokens it is."""
    (tmp_path / "tokenizer.json").write_bytes(wordpiece.read_bytes())
    (tmp_path / name).write_text(content)
    assert text.class_token_id(text.load_tokenizer(tmp_path), tmp_path) == token
