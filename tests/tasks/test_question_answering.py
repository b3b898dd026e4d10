"""Question answering: windows over the context, and the best span of their logits, in characters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Encoding, Tokenizer

from corelane.errors import InvalidInputError, TooLargeError
from corelane.runtimes.base import Array, Outputs, Row
from corelane.tasks import Encoded, Task, get, parse_parameters

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CLASS, SEPARATOR = 101, 102  # of the WordPiece tokenizer


def make(path: Path, max_length: int = 384, inputs: tuple[str, ...] = INPUTS, **options: object) -> Task:
    return get("question-answering")(path, inputs, max_length, options)


def encode(task: Task, question: object, context: object, **parameters: object) -> Encoded:
    return task.encode({"question": question, "context": context}, parse_parameters(task, parameters))


def decode(task: Task, encoded: Encoded, outputs: Sequence[Outputs], **parameters: object) -> Any:
    return task.decode(encoded, outputs, parse_parameters(task, parameters))


def flat(length: int) -> dict[str, Array]:
    """Logits of a model that knows nothing."""
    return {name: np.zeros(length, dtype=np.float32) for name in ("start_logits", "end_logits")}


def noise(rows: Sequence[Row], seed: int) -> list[dict[str, Array]]:
    random = np.random.default_rng(seed)
    return [{name: random.normal(scale=3, size=row.length).astype(np.float32) for name in flat(0)} for row in rows]


def pointing(row: Row, tokens: Sequence[int], height: float = 12.0) -> dict[str, Array]:
    """Logits of a model that found `tokens`, where the row has them in this order; else flat ones."""
    output, ids = flat(row.length), row.inputs[0].tolist()
    for place in range(row.length - len(tokens) + 1):
        if ids[place : place + len(tokens)] == list(tokens):
            output["start_logits"][place] = height
            output["end_logits"][place + len(tokens) - 1] = height
    return output


def columns(row: Row) -> list[list[int]]:
    return [array.tolist() for array in row.inputs]


@pytest.fixture(scope="session")
def words(wordpiece: Path) -> list[str]:
    """Different words of one token each, so that word 120 is token 120."""
    vocabulary = Tokenizer.from_file(str(wordpiece)).get_vocab()
    usable = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 4]
    return sorted(usable, key=lambda word: vocabulary[word])


# --- Spans


def test_the_best_valid_pair_wins_not_the_best_ends(wordpiece: Path) -> None:
    """Start and end chosen one by one would give an end before its start."""
    task = make(wordpiece)
    encoded = encode(task, "who is it", "a b c d e f")  # context tokens at 5 to 10 of 12
    output = flat(12)
    output["start_logits"][[9, 6]] = 4.0, 3.5
    output["end_logits"][[5, 7]] = 4.0, 3.6
    answer = decode(task, encoded, [output])
    assert (answer["answer"], answer["start"], answer["end"]) == ("b c", 2, 5)
    start = np.exp([0, 0, 3.5, 0, 0, 4, 0])  # the class token and the context
    end = np.exp([0, 4, 0, 3.6, 0, 0, 0])
    assert answer["score"] == pytest.approx(np.exp(7.1) / start.sum() / end.sum(), abs=1e-7)
    assert answer["no_answer_score"] == pytest.approx(1 / start.sum() / end.sum(), abs=1e-7)


def reference(
    encoding: Encoding, context: str, output: Outputs, longest: int
) -> tuple[dict[tuple[int, int], float], float]:
    """Every span's score and the class token's, over the whole square, as the model's definition says."""
    allowed = np.array([sequence == 1 for sequence in encoding.sequence_ids])
    allowed[0] = True
    ends = []
    for name in ("start_logits", "end_logits"):
        logits = np.where(allowed, output[name], -10000.0)
        ends.append(np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum())
    none = float(ends[0][0] * ends[1][0])
    ends[0][0] = ends[1][0] = 0
    square = np.tril(np.triu(ends[0][:, None] * ends[1][None]), longest - 1)
    spans: dict[tuple[int, int], float] = {}
    for head, tail in np.argwhere(square > 0).tolist():
        start, end = encoding.offsets[head][0], encoding.offsets[tail][1]
        start, end = end - len(context[start:end].lstrip()), start + len(context[start:end].rstrip())
        if start < end:
            spans[start, end] = max(spans.get((start, end), 0.0), float(square[head, tail]))
    return spans, none


@pytest.mark.parametrize("longest", [1, 2, 7, 30, 512])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_spans_are_those_of_the_whole_square(wordpiece: Path, longest: int, seed: int) -> None:
    """The band that is computed here must leave out nothing that the definition of a score allows."""
    task = make(wordpiece)
    item = task.example
    encoded = task.encode(item, task.parameters())
    (output,) = noise(encoded.rows, seed)
    tokenizer = Tokenizer.from_file(str(wordpiece))
    tokenizer.no_padding()
    encoding = tokenizer.encode(item["question"], item["context"])
    spans, none = reference(encoding, item["context"], output, longest)
    expected = sorted(spans.items(), key=lambda entry: -entry[1])
    answers = decode(task, encoded, [output], max_answer_len=longest, top_k=100)
    assert [(answer["start"], answer["end"]) for answer in answers] == [span for span, _ in expected[:100]]
    assert [answer["score"] for answer in answers] == pytest.approx([score for _, score in expected[:100]])
    assert [answer["no_answer_score"] for answer in answers] == pytest.approx([none] * len(answers))
    assert decode(task, encoded, [output], max_answer_len=longest) == answers[0]


def test_a_list_of_answers_ends_where_the_spans_end(wordpiece: Path) -> None:
    """Three tokens have six spans, however many were asked for."""
    task = make(wordpiece)
    encoded = encode(task, "who is it", "a b c")
    answers = decode(task, encoded, [flat(encoded.tokens)], top_k=50)
    assert sorted(answer["answer"] for answer in answers) == ["a", "a b", "a b c", "b", "b c", "c"]


def test_no_span_is_longer_than_asked_for(wordpiece: Path) -> None:
    """The limit is applied before the ranking, not to the winner."""
    task = make(wordpiece)
    encoded = encode(task, "who is it", "a b c d e f")
    output = flat(12)
    output["start_logits"][5], output["end_logits"][10] = 9.0, 9.0  # a to f
    output["end_logits"][6] = 5.0
    assert decode(task, encoded, [output], max_answer_len=6)["answer"] == "a b c d e f"
    assert decode(task, encoded, [output], max_answer_len=5)["answer"] == "a b"


def test_a_context_that_spells_special_tokens_is_still_context(wordpiece: Path) -> None:
    """The tokenizer reads them as special; what counts is where they stand."""
    task = make(wordpiece)
    encoded = encode(task, "[CLS] who [SEP]", "it is [SEP] me [CLS]")
    output = flat(encoded.tokens)
    output["start_logits"][-3], output["end_logits"][-2] = 9.0, 9.0  # me [CLS]
    answer = decode(task, encoded, [output])
    assert answer["answer"] == "me [CLS]"
    output["start_logits"][0], output["end_logits"][0] = 20.0, 20.0  # the tokenizer's own
    assert decode(task, encoded, [output])["no_answer_score"] > 0.99


def test_an_answer_is_found_however_sure_the_class_token_is(wordpiece: Path) -> None:
    """Products of probabilities would all vanish here, and the first span would win."""
    task = make(wordpiece)
    encoded = encode(task, "who is it", "a b c d e f")
    output = flat(12)
    output["start_logits"][[0, 7]] = 2000.0, 9.0
    output["end_logits"][[0, 8]] = 2000.0, 9.0
    answer = decode(task, encoded, [output])
    assert (answer["answer"], answer["score"], answer["no_answer_score"]) == ("c d", 0.0, 1.0)


def test_the_detail_is_the_best_answers_text(wordpiece: Path) -> None:
    """A static endpoint's GET shows nothing else."""
    task = make(wordpiece)
    encoded = encode(task, "who is it", "a b c")
    output = pointing(encoded.rows[0], encoded.rows[0].inputs[0][6:7].tolist())
    assert task.detail(decode(task, encoded, [output])) == "b"
    assert task.detail(decode(task, encoded, [output], top_k=3)) == "b"


# --- Characters


@pytest.mark.parametrize(
    ("context", "answer", "start"),
    [
        ("Parcel for Ana " + "\n" * 8 + " leave it in Lisbon", "Lisbon", 36),
        ("Line one\r\nThe code is Beta-9\r\n", "Beta-9", 22),
        ("   Ana lives in Porto  ", "Porto", 16),
        ("😀😀 the door code is Alpha-7 👩‍👩‍👧 for staff", "Alpha-7", 20),
        ("😀😀 the door code is Alpha-7 👩‍👩‍👧 for staff", "staff", 38),
        ("Ana\u3000lives in\u00a0Porto", "Porto", 13),
        ("the code\0is Beta-9", "Beta-9", 12),
        ("Jose\u0301 lives in Lisbon", "Lisbon", 15),
    ],
)
def test_offsets_are_code_points_of_the_text_as_sent(
    any_tokenizer: Path, context: str, answer: str, start: int
) -> None:
    """Whatever the tokenizer does with blanks, line ends, emoji, accents; with no blank around them."""
    task = make(any_tokenizer)
    encoded = encode(task, "Where does Ana live?", context)
    tokenizer = Tokenizer.from_file(str(any_tokenizer))
    tokenizer.no_padding()
    encoding = tokenizer.encode("Where does Ana live?", context)
    inside = [
        place
        for place, (begin, end) in enumerate(encoding.offsets)
        if encoding.sequence_ids[place] == 1 and begin < start + len(answer) and end > start
    ]
    output = flat(encoded.tokens)
    output["start_logits"][inside[0]] = output["end_logits"][inside[-1]] = 12.0
    found = decode(task, encoded, [output])
    assert (found["answer"], found["start"], found["end"]) == (answer, start, start + len(answer))
    for other in decode(task, encoded, [output], top_k=100):
        assert other["answer"] == context[other["start"] : other["end"]] == other["answer"].strip() != ""


def test_blank_tokens_are_no_answer(byte_level: Path) -> None:
    """Hundreds of spans of blanks come before the first one that has a text."""
    task = make(byte_level)
    encoded = encode(task, "Where?", "in " + "\n" * 40 + " Porto")
    output = flat(encoded.tokens)
    blanks = encoded.rows[0].inputs[0] == Tokenizer.from_file(str(byte_level)).token_to_id("Ċ")
    assert blanks.sum() == 40
    output["start_logits"][blanks] = output["end_logits"][blanks] = 12.0
    output["end_logits"][-2] = 6.0  # the end of Porto
    assert decode(task, encoded, [output])["answer"] == "Porto"


def test_spans_that_differ_by_a_blank_count_once(byte_level: Path) -> None:
    """With the best score of them; a list of the best answers would else hold the same one twice."""
    task, question, context = make(byte_level), "Where?", "in \n\n\n Porto or \n\n Lisbon"
    encoded = encode(task, question, context)
    (output,) = noise(encoded.rows, 0)
    encoding = Tokenizer.from_file(str(byte_level)).encode(question, context)
    spans, _ = reference(encoding, context, output, 30)
    answers = decode(task, encoded, [output], top_k=100)
    scores = [answer["score"] for answer in answers]
    assert {(answer["start"], answer["end"]): answer["score"] for answer in answers} == pytest.approx(spans)
    assert len(scores) == len(spans) > 3
    assert scores == sorted(scores, reverse=True)


# --- No answer


def test_no_answer_competes_only_where_it_may(wordpiece: Path) -> None:
    """Else the best non-empty span is given, with the score of "no answer" beside it."""
    task = make(wordpiece)
    encoded = encode(task, "Which river runs past the mill?", "The bakery opens at six.")
    output = flat(encoded.tokens)
    output["start_logits"][0] = output["end_logits"][0] = 12.0
    assert decode(task, encoded, [output])["answer"] != ""
    answer = decode(task, encoded, [output], handle_impossible_answer=True)
    assert (answer["answer"], answer["start"], answer["end"]) == ("", 0, 0)
    assert answer["score"] == answer["no_answer_score"] == pytest.approx(1.0, abs=1e-3)
    answers = decode(task, encoded, [output], handle_impossible_answer=True, top_k=2)
    assert [answer["answer"] == "" for answer in answers] == [True, False]


def test_over_windows_the_lowest_no_answer_counts(wordpiece: Path, words: list[str]) -> None:
    """One window that holds the answer is enough; the others rightly find none."""
    task = make(wordpiece, 32)
    context = " ".join(words[:60])
    encoded = encode(task, "where is it", context)
    assert len(encoded.rows) >= 4
    outputs = []
    for number, row in enumerate(encoded.rows):
        output = flat(row.length)
        output["start_logits"][0] = output["end_logits"][0] = 12.0 if number != 2 else -12.0
        outputs.append(output)
    outputs[2]["start_logits"][9] = outputs[2]["end_logits"][9] = 12.0
    answer = decode(task, encoded, outputs, handle_impossible_answer=True)
    assert answer["answer"] in words[:60]
    assert answer["no_answer_score"] < 1e-9


def test_the_class_token_is_found_at_the_end(metaspace: Path) -> None:
    """Not every tokenizer begins with it; here it is the last of three special tokens."""
    task = make(metaspace, 40)
    encoded = encode(task, "Where does Ana live?", "Ana lives in Porto. " * 10)
    assert len(encoded.rows) > 2
    outputs = [flat(row.length) for row in encoded.rows]
    for row, output in zip(encoded.rows, outputs, strict=True):
        assert row.inputs[0][-1] == Tokenizer.from_file(str(metaspace)).token_to_id("<cls>")
        output["start_logits"][-1] = output["end_logits"][-1] = 12.0
    answer = decode(task, encoded, outputs, handle_impossible_answer=True)
    assert (answer["answer"], answer["score"] > 0.99) == ("", True)


# --- Windows


def library(path: Path, max_length: int, stride: int) -> Tokenizer:
    """The tokenizers library's own windows, as transformers asks for them."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length, stride=stride, strategy="only_second")
    return tokenizer


@pytest.mark.parametrize("stride", [0, 1, 7, 12])
@pytest.mark.parametrize("length", [40, 48])
@pytest.mark.parametrize("repeats", [1, 2, 5, 11, 40])
def test_windows_are_those_of_the_library(any_tokenizer: Path, length: int, stride: int, repeats: int) -> None:
    """The models were trained and measured with these."""
    question, context = "Where does Ana live?", "Ana lives in Porto, it is so. " * repeats
    first = library(any_tokenizer, length, stride).encode(question, context)
    encoded = encode(make(any_tokenizer, length), question, context, doc_stride=stride)
    assert [columns(row) for row in encoded.rows] == [
        [window.ids, window.attention_mask, window.type_ids] for window in (first, *first.overflowing)
    ]
    assert [row.length for row in encoded.rows] == [len(row.inputs[0]) for row in encoded.rows]


@pytest.fixture
def sized(words: list[str]) -> tuple[str, str]:
    """A question of 11 tokens and a context of 157: in 128, the question leaves room for 114."""
    return " ".join(words[200:211]), " ".join(words[:157])


@pytest.mark.parametrize("stride", [{}, {"doc_stride": 0}, {"doc_stride": 57}, {"doc_stride": 113}])
def test_every_context_token_stands_in_a_window(
    wordpiece: Path, sized: tuple[str, str], stride: dict[str, int]
) -> None:
    """Also with the widest overlap there is, and with none."""
    encoded = encode(make(wordpiece, 128), *sized, **stride)
    tokenizer = Tokenizer.from_file(str(wordpiece))
    wanted = [tokenizer.token_to_id(word) for word in sized[1].split()]
    seen = [row.inputs[0].tolist() for row in encoded.rows]
    assert all(any(token in ids for ids in seen) for token in wanted)
    assert all(ids[0] == CLASS and ids[-1] == SEPARATOR and len(ids) <= 128 for ids in seen)
    assert not encoded.truncated
    assert encoded.tokens == 171


@pytest.mark.parametrize("stride", [{}, {"doc_stride": 0}, {"doc_stride": 113}])
def test_an_answer_past_the_first_window_is_found_at_its_place(
    wordpiece: Path, sized: tuple[str, str], words: list[str], stride: dict[str, int]
) -> None:
    """Token 120 is beyond what fits with the question; its offsets are those of the whole context."""
    task = make(wordpiece, 128)
    encoded = encode(task, *sized, **stride)
    token = Tokenizer.from_file(str(wordpiece)).token_to_id(words[120])
    answer = decode(task, encoded, [pointing(row, [token]) for row in encoded.rows])
    assert answer["answer"] == words[120] == sized[1][answer["start"] : answer["end"]]
    assert answer["score"] > 0.9


def test_an_answer_across_a_windows_edge_is_found_whole(
    wordpiece: Path, sized: tuple[str, str], words: list[str]
) -> None:
    """The first window ends after token 113; the overlap holds both sides."""
    task = make(wordpiece, 128)
    encoded = encode(task, *sized, doc_stride=20)
    tokenizer = Tokenizer.from_file(str(wordpiece))
    tokens = [tokenizer.token_to_id(word) for word in words[112:116]]
    answer = decode(task, encoded, [pointing(row, tokens) for row in encoded.rows])
    assert answer["answer"] == " ".join(words[112:116])


def test_an_answer_in_two_windows_counts_once_with_its_best_score(
    wordpiece: Path, sized: tuple[str, str], words: list[str]
) -> None:
    """A list of the best answers would else begin with the same one twice."""
    task = make(wordpiece, 128)
    encoded = encode(task, *sized, doc_stride=57)
    token = Tokenizer.from_file(str(wordpiece)).token_to_id(words[100])
    heights = [12.0, 3.0]  # the lower one comes later
    outputs = [pointing(row, [token], height) for row, height in zip(encoded.rows, heights, strict=True)]
    answers = decode(task, encoded, outputs, top_k=10)
    assert [answer["answer"] for answer in answers].count(words[100]) == 1
    assert answers[0]["answer"] == words[100]
    assert answers[0]["score"] > 0.99


@pytest.mark.parametrize("stride", [114, 115, 127, 128, 10**9])
def test_a_stride_that_leaves_no_step_is_refused(wordpiece: Path, sized: tuple[str, str], stride: int) -> None:
    """With the number that was sent and the one it must be below."""
    with pytest.raises(InvalidInputError, match=rf"doc_stride={stride} must be below .*(114|128)"):
        encode(make(wordpiece, 128), *sized, doc_stride=stride)


def test_a_stride_above_the_window_is_refused_for_short_contexts_too(wordpiece: Path) -> None:
    """It can suit no text, and a caller should learn that from the first one."""
    with pytest.raises(InvalidInputError, match="doc_stride=128 must be below a window's 128 tokens"):
        encode(make(wordpiece, 128), "who?", "me", doc_stride=128)


def test_the_default_stride_gives_way_to_a_long_question(wordpiece: Path, words: list[str]) -> None:
    """300 tokens leave room for 81, so the usual 128 cannot be kept; half the room is."""
    encoded = encode(make(wordpiece, 384), " ".join(words[:300]), " ".join(words[300:500]))
    starts = [row.inputs[0][302] for row in encoded.rows]
    tokenizer = Tokenizer.from_file(str(wordpiece))
    assert starts == [tokenizer.token_to_id(words[300 + 41 * number]) for number in range(len(starts))]


def test_a_question_that_leaves_no_room_is_too_large(wordpiece: Path, words: list[str]) -> None:
    """It would take a window for nearly every word, or could not be asked at all."""
    task, context = make(wordpiece, 128), " ".join(words[:20])
    assert len(encode(task, " ".join(words[:117]), context).rows) == 4
    for size in (118, 124, 125, 600):
        with pytest.raises(TooLargeError, match=rf"question takes {size + 3} of the 128 tokens .* least 8 "):
            encode(task, " ".join(words[:size]), context)


def test_a_short_context_needs_no_more_room_than_its_own(wordpiece: Path, words: list[str]) -> None:
    """What fits as a whole is never refused."""
    encoded = encode(make(wordpiece, 128), " ".join(words[:124]), "me")
    assert [row.length for row in encoded.rows] == [128]


def test_more_windows_than_one_item_may_take_are_refused(wordpiece: Path) -> None:
    """A megabyte of text, or a step of one token, would fill the queue for minutes."""
    with pytest.raises(TooLargeError, match=r"1000 tokens, which makes 38 windows, .* may take 30"):
        encode(make(wordpiece, 32, max_windows=30), "who?", "word " * 1000, doc_stride=0)
    with pytest.raises(TooLargeError, match="which makes 974 windows, and one item may take 128"):
        encode(make(wordpiece, 32), "who?", "word " * 1000, doc_stride=26)


def test_windows_may_be_shorter_than_the_model_but_not_longer(wordpiece: Path, words: list[str]) -> None:
    """Shorter ones can be cheaper or better; longer ones were never compiled."""
    task, context = make(wordpiece, 128), " ".join(words[:100])
    rows = encode(task, "who is it?", context, max_seq_len=64).rows
    assert max(row.length for row in rows) == 64
    with pytest.raises(InvalidInputError, match="max_seq_len=129 is more than the 128 tokens"):
        encode(task, "who is it?", context, max_seq_len=129)


def test_rows_hold_the_models_inputs_in_the_models_order(wordpiece: Path) -> None:
    """A model without segments gets none."""
    (row,) = encode(make(wordpiece, inputs=("attention_mask", "input_ids")), "who", "me").rows
    assert columns(row) == [[1] * 5, [CLASS, 2040, SEPARATOR, 2033, SEPARATOR]]
    assert {array.dtype for array in row.inputs} == {np.dtype(np.int64)}


# --- Input


@pytest.mark.parametrize("blank", ["", "   ", "\n", "\u3000\t"])
def test_a_blank_question_or_context_is_refused(wordpiece: Path, blank: str) -> None:
    """There is nothing to answer, or nothing to answer from; a default text is never put in its place."""
    task = make(wordpiece)
    with pytest.raises(InvalidInputError, match=r"^context is (empty|blank)"):
        encode(task, "Is it raining?", blank)
    with pytest.raises(InvalidInputError, match=r"^question is (empty|blank)"):
        encode(task, blank, "It is raining.")


def test_a_text_of_which_no_token_is_left_is_refused(wordpiece: Path) -> None:
    """Not blank for Python, but nothing for this tokenizer."""
    task = make(wordpiece)
    with pytest.raises(InvalidInputError, match=r"^context has only characters"):
        encode(task, "Is it raining?", "\u200b\0")
    with pytest.raises(InvalidInputError, match=r"^question has only characters"):
        encode(task, "\0", "It is raining.")


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ("text", "must be an object with question and context, found the string"),
        (None, "must be an object with question and context, found null"),
        (["a", "b"], "must be an object with question and context, found an array"),
        ({}, "has no question; it needs question and context"),
        ({"question": "a"}, "has no context; it needs question and context"),
        ({"question": "a", "context": "b", "id": 1}, 'unknown field "id"; known are question, context'),
        ({"question": "a", "context": None}, "context must be a string, found null"),
        ({"question": 1, "context": "b"}, "question must be a string, found the number 1"),
        ({"question": "hi \ud800", "context": "b"}, "question has half of a surrogate pair (U+D800)"),
        ({"question": "hi", "context": "😀\udc00"}, "context has half of a surrogate pair (U+DC00)"),
    ],
)
def test_an_item_of_another_form_is_refused_in_one_sentence(wordpiece: Path, item: object, sentence: str) -> None:
    """The sentence names the field and what was found."""
    task = make(wordpiece)
    with pytest.raises(InvalidInputError) as caught:
        task.encode(item, task.parameters())
    assert sentence in str(caught.value)
    assert str(caught.value).encode()


def test_the_query_needs_both_texts_or_none(wordpiece: Path) -> None:
    """Absent is not empty: an empty context is refused later, and never answered from the example."""
    task = make(wordpiece)
    assert task.from_query(None, None) == task.example
    assert task.from_query("a", "") == {"question": "a", "context": ""}
    with pytest.raises(InvalidInputError, match="seq_0 came without seq_1"):
        task.from_query("a", None)
    with pytest.raises(InvalidInputError, match="seq_1 came without seq_0"):
        task.from_query(None, "")


def test_many_threads_get_the_rows_that_one_gets(wordpiece: Path) -> None:
    """A tokenizer whose limits were changed between calls would give wrong lengths here, and no error."""
    short, long = make(wordpiece, 32), make(wordpiece, 128)
    contexts = ["word " * (7 * at % 150 + 1) for at in range(200)]

    def rows(task: Task) -> list[list[list[list[int]]]]:
        return [[columns(row) for row in encode(task, "where is it", context).rows] for context in contexts]

    alone = {id(task): rows(task) for task in (short, long)}
    wrong: list[int] = []

    def work(task: Task) -> None:
        pairs = zip(rows(task), alone[id(task)], strict=True)
        wrong.extend(number for number, (found, expected) in enumerate(pairs) if found != expected)

    threads = [threading.Thread(target=work, args=(task,)) for task in (short, long) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
