"""The grammar of one `key=value` file: bytes in, entries out, and back. A leaf on the standard library.

What a file may hold:
  - UTF-8, a byte-order mark is dropped; lines end in LF or CRLF, the last one may have no end;
  - blank lines, and comment lines that begin with # or !;
  - `key=value`, blanks around the = are dropped; `key: value` means the same, the value keeps its own colons;
  - `export KEY=value` means the same; as in a shell, a value with blanks then needs quotes;
  - a # after a blank begins a trailing comment, except inside quotes: `bert#inf` is a value;
  - a whole value in single or double quotes is unquoted; quotes inside a value are ordinary characters;
  - an unquoted value that ends in one backslash goes on in the next line, whose leading blanks are dropped;
  - all else is literal: a percent sign, =, a backslash, a $ that names nothing. Nothing is ever expanded.

What is refused, with file, line and reason: shell code (${x}, $(x), $x and backquotes outside single quotes,
+=, if, source and their kind); a key twice in one file; half-quoted values; bytes that are not UTF-8; control
characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from corelane.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """A value as the file means it, and the line (from 1) on which its key stands."""

    value: str
    line: int


BLANKS = " \t"
_LINE = re.compile(
    r"(?P<export>export[ \t]+)?(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)[ \t]*(?P<operator>[+?:]?=|:)(?P<rest>.*)",
    re.DOTALL,
)
COMMENT = re.compile(r"[ \t]#")
_AFTER_QUOTE = re.compile(r"[ \t]*|[ \t]+#.*", re.DOTALL)
_SHELL_IN_VALUE = re.compile(r"\$\{|\$\(|\$[A-Za-z_]|`")
_SHELL_WORD = re.compile(
    r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|function|source|\.|\[\[?|[{}]|export|set|unset|declare"
    r"|local|readonly|eval|exec|cd|cp|mv|rm|echo|printf|return|exit)(?=$|[ \t;(])"
)
# A continued line at the left edge that reads like this is the next setting, lost behind a path like C:\new\.
_NEXT_SETTING = re.compile(r"(export[ \t]+)?[A-Za-z_][A-Za-z0-9_.-]*[ \t]*=")


def parse_properties(data: bytes, source: str) -> dict[str, Entry]:
    """Read one file by the rules above; `source` is its name in messages."""
    entries: dict[str, Entry] = {}
    lines = _decoded_lines(data, source)
    index = 0
    while index < len(lines):
        number = index + 1
        where = f"{source}:{number}"
        text = lines[index].strip(BLANKS)
        if not text or text[0] in "#!":
            index += 1
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"{where}: {_why_no_setting(text)}; write key=value, or # before a comment")
        key, rest = match["key"], match["rest"]
        if len(match["operator"]) > 1:
            raise ConfigError(
                f"{where}: {key}{match['operator']} is shell or make, not a setting; write {key}=value in full"
            )
        if rest.strip(BLANKS)[:1] in ("'", '"'):
            value = _quoted(rest.strip(BLANKS), key, where)
            index += 1
        else:
            value, index = _unquoted(rest, lines, index, key, source)
            if match["export"] and re.search(r"[ \t]", value):
                raise ConfigError(
                    f"{where}: export {key}={shown(value)} has blanks, which a shell ends at; put quotes around it"
                )
        if key in entries:
            raise ConfigError(f"{where}: {key} stands already in line {entries[key].line}; keep one of the two")
        entries[key] = Entry(value, number)
    return entries


def as_line(key: str, value: str) -> str:
    """The line that `parse_properties` reads back as this value; ConfigError for the few that no line can hold."""
    for mark in ("", "'", '"'):
        written = f"{key}={mark}{value}{mark}"
        try:
            if parse_properties(written.encode("utf-8"), key)[key].value == value:
                return written
        except (ConfigError, UnicodeEncodeError):
            continue  # another way of quoting may do
    raise ConfigError(
        f"{key}={shown(value)} cannot be written into a file, quoted or not; choose a value without quotes,"
        " control characters and what a shell would expand"
    )


def _decoded_lines(data: bytes, source: str) -> list[str]:
    lines = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as err:
            raise ConfigError(
                f"{source}:{number}: byte 0x{raw[err.start]:02x} is not UTF-8; save the file as UTF-8 text"
            ) from err
        for character in line:
            if character != "\t" and (character == "\ufeff" or is_invisible(character)):
                raise ConfigError(
                    f"{source}:{number}: character U+{ord(character):04X} cannot be seen and means nothing; "
                    "delete it, or save the file as UTF-8 text with LF or CRLF line ends"
                )
        lines.append(line)
    return lines


def is_invisible(character: str) -> bool:
    """Whether it is a control character or a line end: nothing that a person could have meant in a value."""
    return unicodedata.category(character) in ("Cc", "Zl", "Zp")


def _why_no_setting(text: str) -> str:
    reason = "is shell code, which is not run here" if _SHELL_WORD.match(text) else "is no setting"
    return f"{shown(text)} {reason}"


def _quoted(text: str, key: str, where: str) -> str:
    """The value of a text that begins with a quote, which must end the whole value."""
    mark = text[0]
    end = text.find(mark, 1)
    if end < 0:
        raise ConfigError(
            f"{where}: the value of {key} begins with {mark} and nothing closes it in this line; add the other {mark}"
        )
    after = text[end + 1 :]
    if not _AFTER_QUOTE.fullmatch(after):
        raise ConfigError(
            f"{where}: {shown(after)} follows the closing quote of {key}; put quotes around the whole value or none"
        )
    value = text[1:end]
    if mark == '"':
        _refuse_shell(value, key, where)
    return value


def _unquoted(rest: str, lines: Sequence[str], index: int, key: str, source: str) -> tuple[str, int]:
    """The value that begins with `rest` in line `index` (from 0), and the index of the line after it."""
    where = f"{source}:{index + 1}"
    value = ""
    piece = rest
    while _is_continued(piece):
        following = index + 1
        if lines[index].rstrip(BLANKS) != lines[index]:
            raise ConfigError(
                f"{source}:{index + 1}: blanks follow the last backslash of {key}; delete them to continue the value"
            )
        if COMMENT.search(piece):
            raise ConfigError(f"{source}:{index + 1}: a comment cannot be continued; move it above {key}")
        if following == len(lines) or lines[following].strip(BLANKS)[:1] in ("", "#", "!"):
            raise ConfigError(
                f"{source}:{index + 1}: {key} ends in a backslash and no value follows; delete the backslash"
            )
        if _NEXT_SETTING.match(lines[following]):
            raise ConfigError(
                f"{source}:{index + 1}: {key} ends in a backslash, which makes the setting below part of it; "
                "delete the backslash, put quotes around the value, or indent the line that continues it"
            )
        value += piece[:-1]
        index = following
        piece = lines[index].strip(BLANKS)
    comment = COMMENT.search(piece)
    value += piece[: comment.start()] if comment else piece
    value = value.strip(BLANKS)
    if comment and any(value.count(mark) % 2 for mark in "'\""):
        raise ConfigError(
            f"{where}: the # in the value of {key} may be inside quotes or begin a comment; quote the whole value"
        )
    if value[:1] in ("'", '"'):
        raise ConfigError(f"{where}: the quoted value of {key} is continued; write it in one line")
    _refuse_shell(value, key, where)
    return value, index + 1


def _is_continued(piece: str) -> bool:
    """Java's rule: an odd number of backslashes at the end."""
    return (len(piece) - len(piece.rstrip("\\"))) % 2 == 1


def _refuse_shell(value: str, key: str, where: str) -> None:
    found = _SHELL_IN_VALUE.search(value)
    if found:
        raise ConfigError(
            f"{where}: {key}={shown(value)} holds {found[0]}, and nothing is expanded here; "
            "write the value in full, or put single quotes around it to keep it as it is"
        )


def shown(value: str) -> str:
    """A value for a message: quoted, the invisible escaped, cut when long, passwords in URLs as stars."""
    starred = re.sub(r"//[^/\s]*@", "//***@", value)
    return repr(starred if len(starred) <= 80 else starred[:77] + "...")
