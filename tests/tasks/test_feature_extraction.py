"""Feature extraction: one row a text, cut as sentence-transformers cuts it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from corelane.errors import InvalidInputError, TooLargeError
from corelane.runtimes.base import Row
from corelane.tasks import Encoded, Task, get, parse_parameters

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def make(path: Path, max_length: int = 128, inputs: tuple[str, ...] = INPUTS, **options: object) -> Task:
    return get("feature-extraction")(path, inputs, max_length, options)


def encode(task: Task, item: object, **parameters: object) -> Encoded:
    return task.encode(item, parse_parameters(task, parameters))


def columns(row: Row) -> list[list[int]]:
    return [array.tolist() for array in row.inputs]


def library(path: Path, max_length: int) -> Tokenizer:
    """The tokenizers library's own truncation, as transformers and sentence-transformers ask for it."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    return tokenizer


@pytest.mark.parametrize("words", [1, 29, 30, 31, 500])
def test_a_text_is_cut_as_the_library_cuts_it(any_tokenizer: Path, words: int) -> None:
    """The first tokens stay, and all special ones, wherever the tokenizer puts them."""
    text = "Ana lives in Porto. " * words
    expected = library(any_tokenizer, 32).encode(text)
    (row,) = encode(make(any_tokenizer, 32), text).rows
    assert columns(row) == [expected.ids, expected.attention_mask, expected.type_ids]
    assert row.length == len(expected)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (3, 5),
        (50, 3),
        (3, 50),
        (50, 60),
        (60, 50),
        (50, 50),
        (14, 15),
        (15, 14),
        (30, 1),
        (1, 30),
    ],
)
def test_of_a_pair_the_longer_text_is_cut_first(any_tokenizer: Path, first: int, second: int) -> None:
    """As the library's `longest_first` does, so that a pair means the same here and there."""
    texts = ("code " * first, "door " * second)
    expected = library(any_tokenizer, 32).encode(*texts)
    (row,) = encode(make(any_tokenizer, 32), {"text": texts[0], "text_pair": texts[1]}).rows
    assert columns(row) == [expected.ids, expected.attention_mask, expected.type_ids]


def test_of_two_very_long_texts_what_stays_is_what_stays_of_shorter_ones(any_tokenizer: Path) -> None:
    """They are read in pieces first; the library's own cut of such a pair makes a square of leftovers."""
    task = make(any_tokenizer, 32)
    for more in ({}, {"text_pair": "door " * 9000}):
        shorter = {field: text[:1000] for field, text in more.items()}
        long = encode(task, {"text": "code " * 9000, **more})
        assert columns(long.rows[0]) == columns(encode(task, {"text": "code " * 200, **shorter}).rows[0])
        assert long.tokens > 9_000


def test_a_cut_text_says_so_with_the_count_before_the_cut(wordpiece: Path) -> None:
    """The server tells the caller; nothing is cut in silence."""
    encoded = encode(make(wordpiece, 128), "word " * 700)
    assert (encoded.truncated, encoded.tokens, encoded.rows[0].length) == (True, 702, 128)


def test_a_text_that_just_fits_is_not_cut(wordpiece: Path) -> None:
    """Special tokens count."""
    encoded = encode(make(wordpiece, 128), "word " * 126)
    assert (encoded.truncated, encoded.tokens, encoded.rows[0].length) == (False, 128, 128)


def test_a_long_text_is_refused_where_the_caller_forbids_cutting(wordpiece: Path) -> None:
    """With both numbers."""
    with pytest.raises(TooLargeError, match="702 tokens and the model takes 128"):
        encode(make(wordpiece, 128), "word " * 700, truncate=False)


def test_the_models_own_limit_beats_a_longer_shape(wordpiece: Path) -> None:
    """sentence-transformers cuts at the limit in the model's files, whatever the network could take."""
    assert encode(make(wordpiece, 512, max_seq_length=256), "word " * 700).rows[0].length == 256
    assert encode(make(wordpiece, 128, max_seq_length=256), "word " * 700).rows[0].length == 128
    assert encode(make(wordpiece, 128, max_seq_length=None), "word " * 700).rows[0].length == 128


def test_rows_hold_the_models_inputs_in_the_models_order(wordpiece: Path) -> None:
    """A model without segments gets none."""
    (row,) = encode(make(wordpiece, inputs=("attention_mask", "input_ids")), "two words").rows
    assert columns(row) == [[1, 1, 1, 1], [101, 2048, 2616, 102]]
    assert {array.dtype for array in row.inputs} == {np.dtype(np.int64)}


def test_an_empty_text_is_refused(wordpiece: Path) -> None:
    """Nothing to say a vector of; the same for an empty pair."""
    with pytest.raises(InvalidInputError, match="text is empty"):
        encode(make(wordpiece), "")
    with pytest.raises(InvalidInputError, match="text_pair is empty"):
        encode(make(wordpiece), {"text": "a", "text_pair": ""})


@pytest.mark.parametrize("text", [" ", "\n\t", "\0", "\u200b"])
def test_a_text_that_normalises_to_nothing_is_the_special_tokens_alone(wordpiece: Path, text: str) -> None:
    """As with sentence-transformers: a finite vector, not an error."""
    assert encode(make(wordpiece), text).rows[0].inputs[0].tolist() == [101, 102]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (None, "text must be a string, found null"),
        (1, "text must be a string, found the number 1"),
        (["a"], "text must be a string, found an array"),
        ({}, "has no text"),
        ({"text": "a", "pair": "b"}, 'unknown field "pair"; known are text, text_pair'),
        ({"text": None}, "text must be a string, found null"),
        ({"text": "a", "text_pair": None}, "text_pair must be a string, found null"),
        ("a\ud800", "text has half of a surrogate pair (U+D800) at character 1"),
        ({"text": "a", "text_pair": "\udc00"}, "text_pair has half of a surrogate pair"),
    ],
)
def test_an_item_of_another_form_is_refused_in_one_sentence(wordpiece: Path, item: object, words: str) -> None:
    """The sentence names the field and what was found."""
    with pytest.raises(InvalidInputError) as caught:
        encode(make(wordpiece), item)
    assert words in str(caught.value)
    assert str(caught.value).encode()


def test_the_query_gives_a_text_and_maybe_its_pair(wordpiece: Path) -> None:
    """Absent is not empty: an empty argument never becomes the example."""
    task = make(wordpiece)
    assert task.from_query(None, None) == task.example
    assert task.from_query("a", None) == "a"
    assert task.from_query("", None) == ""
    assert task.from_query("a", "b") == {"text": "a", "text_pair": "b"}
    with pytest.raises(InvalidInputError, match="seq_1 came without seq_0"):
        task.from_query(None, "b")


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_the_answer_is_the_models_output_in_float32(wordpiece: Path, shape: tuple[int, ...]) -> None:
    """(hidden,) of a pooling model, (tokens, hidden) of another; contiguous, which the JSON writer needs."""
    task = make(wordpiece, pooled=len(shape) == 1)
    values = np.arange(np.prod(shape) * 2, dtype=np.float64).reshape(*shape[:-1], -1)[..., ::2]
    answer = task.decode(encode(task, "a"), [{"embedding": values}], None)
    assert answer.dtype == np.float32
    assert answer.flags.c_contiguous
    assert answer.tolist() == values.tolist()
    assert task.detail(answer) is answer


def test_many_threads_get_the_rows_that_one_gets(wordpiece: Path) -> None:
    """A tokenizer whose limits were changed between calls would give wrong lengths here, and no error."""
    short, long = make(wordpiece, 32), make(wordpiece, 128)
    texts = ["word " * (7 * at % 150 + 1) for at in range(200)]
    parameters = parse_parameters(short, None)
    alone = {id(task): [columns(task.encode(text, parameters).rows[0]) for text in texts] for task in (short, long)}
    wrong: list[Any] = []

    def work(task: Task) -> None:
        rows = [columns(task.encode(text, parameters).rows[0]) for text in texts]
        wrong.extend(text for text, row, one in zip(texts, rows, alone[id(task)], strict=True) if row != one)

    threads = [threading.Thread(target=work, args=(task,)) for task in (short, long) * 8]  # 3,200 rows
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
