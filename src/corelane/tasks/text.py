"""Text as callers send it, and the tokenizer that reads it.

One `Tokenizer` object serves all threads of a slot. Its truncation and padding are switched off here, once;
changing them between calls would change the lengths that other threads get.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from corelane.errors import BundleError, InvalidInputError
from corelane.runtimes.base import Array

PIECE_CHARACTERS = 20_000
_QUOTED_CHARACTERS = 40  # of a caller's value in an error text
_LARGEST_SHOWN = 10**18


def quote(value: object) -> str:
    """A string of the caller for an error text: JSON in ASCII, so it is valid UTF-8 whatever was sent."""
    text = str(value)
    shown = text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "..."
    return json.dumps(shown)


def describe(value: object) -> str:
    """A JSON value for an error text, in JSON's words and never longer than a few."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return f"the string {quote(value)}"
    if isinstance(value, (int, float)):
        return f"the number {value}" if -_LARGEST_SHOWN < value < _LARGEST_SHOWN else "a number out of range"
    return "an array" if isinstance(value, (list, tuple)) else "an object"


def require_text(value: object, field: str) -> str:
    """`value`, if it is a text that can be encoded at all; `field` names it in the error."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{field} must be a string, found {describe(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as err:
        raise InvalidInputError(
            f"{field} has half of a surrogate pair (U+{ord(value[err.start]):04X}) at character {err.start}, "
            "which stands for no character; send the whole pair or leave it out"
        ) from None
    return value


def require_object(value: object, fields: tuple[str, ...], what: str, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """`value`, if it is an object with all of `fields` and nothing but `fields` and `optional`."""
    wanted = " and ".join(fields)
    if not isinstance(value, dict):
        raise InvalidInputError(f"{what} must be an object with {wanted}, found {describe(value)}")
    for name in value:
        if name not in fields and name not in optional:
            raise InvalidInputError(
                f"{what} has an unknown field {quote(name)}; known are {', '.join(fields + optional)}"
            )
    for name in fields:
        if name not in value:
            raise InvalidInputError(f"{what} has no {name}; it needs {wanted}")
    return value


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in `path` (`tokenizer.json` or its folder), without truncation and padding."""
    file = tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as err:  # the library raises nothing narrower
        raise BundleError(f"the tokenizer {file} cannot be read ({err}); trace the model again") from err
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_file(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def encode_one(tokenizer: Tokenizer, text: str, pair: str | None = None) -> Encoding:
    """One text or pair, with offsets in code points.

    As a batch of one: `encode` keeps the interpreter's lock (1 s for 1 MB of text), `encode_batch` frees it.
    """
    encoding: Encoding = tokenizer.encode_batch([text if pair is None else (text, pair)])[0]
    return encoding


def pieces(tokenizer: Tokenizer, text: str) -> Iterator[tuple[int, int]]:
    """(characters so far, about how many tokens they have, special ones not counted), piece by piece.

    One encoding of a long text takes 600 bytes a token, and 1 MB of text can be a million tokens; a piece takes
    little. Words at the pieces' edges may be counted as one token more.
    """
    tokens = 0
    for begin in range(0, len(text), PIECE_CHARACTERS):
        piece = text[begin : begin + PIECE_CHARACTERS]
        tokens += len(tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0])
        yield begin + len(piece), tokens


def is_long(text: str) -> bool:
    """Whether a text is worth looking at in pieces first."""
    return len(text) > PIECE_CHARACTERS


_COLUMNS: dict[str, Callable[[Encoding], list[int]]] = {
    "input_ids": lambda encoding: encoding.ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "token_type_ids": lambda encoding: encoding.type_ids,
}


def require_fit(tokenizer: Tokenizer, input_names: tuple[str, ...], max_length: int) -> None:
    """BundleError where the model has an input that no tokenizer gives, or no room for a pair of words."""
    least = tokenizer.num_special_tokens_to_add(True) + 2
    if max_length < least:
        raise BundleError(
            f"the model takes {max_length} tokens and its tokenizer needs at least {least}; "
            "trace it with a longer sequence"
        )
    for name in input_names:
        if name not in _COLUMNS:
            raise BundleError(
                f"the model has the input {name}, and tasks make only {', '.join(_COLUMNS)}; trace it without"
            )


def columns(encoding: Encoding, input_names: tuple[str, ...]) -> tuple[Array, ...]:
    """An encoding as the model's inputs: (tokens,) int64 each."""
    return tuple(np.array(_COLUMNS[name](encoding), dtype=np.int64) for name in input_names)


_CLASS_TOKENS = ("[CLS]", "<s>", "<cls>", "<|startoftext|>")  # where no file says which token it is


def class_token_id(tokenizer: Tokenizer, path: Path) -> int | None:
    """The id of the tokenizer's class token: by the configuration beside it, else by the usual names."""
    names = [_configured_class_token(tokenizer_file(path).parent), *_CLASS_TOKENS]
    ids = (tokenizer.token_to_id(name) for name in names if name)
    return next((token for token in ids if token is not None), None)


def _configured_class_token(folder: Path) -> str | None:
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            settings: object = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # both files are optional, and the usual names remain
        token = settings.get("cls_token") if isinstance(settings, Mapping) else None
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            return token
    return None
