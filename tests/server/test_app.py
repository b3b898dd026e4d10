"""The routes of a core server, over a real socket: what exists, what is refused, and in which words."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from corelane.errors import RequestError
from corelane.server.errors import STATUS
from support.servers import ask, scripted_server

CORE = 10
PATH = f"/predictions_neuron_core_{CORE}/model_0"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with scripted_server(folder, core=CORE, num_models_per_server=2, max_body_bytes=5000, max_queue_rows=100) as made:
        yield made.wait_ready()


@pytest.fixture(autouse=True)
def _next_request_works(server):
    """Whatever a test sent, the next caller is served."""
    yield
    assert server.ask(PATH, {"inputs": "ab"}).json == {"sum": 195.0}


def test_the_static_endpoint_without_arguments_answers_the_example(server):
    reply = server.ask(PATH)
    assert (reply.status, reply.json) == (200, {"detail": 294.0})


def test_the_query_is_decoded_exactly(server):
    text = "C++ 100% ok"
    reply = server.ask(f"{PATH}?seq_0={urllib.parse.quote_plus(text)}")
    assert reply.json == {"detail": float(sum(map(ord, text)))}


def test_every_model_of_every_path_answers(server):
    for path in (
        PATH,
        f"/predictions_neuron_core_{CORE}/model_1",
        "/predictions/model_0",
        "/predictions/model_1",
    ):
        assert server.ask(path, {"inputs": "a"}).json == {"sum": 97.0}


def test_a_list_is_answered_with_a_list_in_its_order(server):
    reply = server.ask(PATH, {"inputs": ["a", "b", "c"], "parameters": {"times": 2}})
    assert reply.json == [{"sum": 194.0}, {"sum": 196.0}, {"sum": 198.0}]


def test_a_list_of_one_is_a_list(server):
    assert server.ask(PATH, {"inputs": ["a"]}).json == [{"sum": 97.0}]


def test_a_bad_item_stands_in_its_place_and_the_rest_is_answered(server):
    reply = server.ask(PATH, {"inputs": ["a", "", "b"]})
    assert reply.status == 200
    good, bad, other = reply.json
    assert (good, other) == ({"sum": 97.0}, {"sum": 98.0})
    assert bad["error"]["code"] == "invalid_input"


def test_when_every_item_is_bad_the_answer_has_that_status(server):
    assert server.ask(PATH, {"inputs": ["", ""]}).status == 422


@pytest.mark.parametrize(("text", "status"), [("raise", 500), ("nan", 500)])
def test_a_model_that_fails_on_one_item_fails_that_item_alone(server, text, status):
    """NaN is not JSON, and a forward that raises must not take its neighbours along."""
    assert server.ask(PATH, {"inputs": text}).status == status
    good, bad, other = server.ask(PATH, {"inputs": ["a", text, "b"]}).json
    assert (good, other) == ({"sum": 97.0}, {"sum": 98.0})
    assert bad["error"]["code"] == "compute"


def test_text_that_was_cut_is_said_to_be(server):
    reply = server.ask(PATH, {"inputs": ["short", "x" * 17]})
    assert reply.headers["x-corelane-truncated"] == "1"
    assert "x-corelane-truncated" not in server.ask(PATH, {"inputs": "short"}).headers


def test_every_answer_names_request_core_model_and_times(server):
    headers = server.ask(PATH, headers={"x-request-id": "mine-1"}).headers
    assert headers["x-request-id"] == "mine-1"
    assert headers["x-corelane-core"] == str(CORE)
    assert headers["x-corelane-model"] == "sum@1"
    names = [part.split(";dur=")[0] for part in headers["server-timing"].split(", ")]
    assert names == ["encode", "queue", "compute", "decode"]


def test_an_unusable_request_id_is_replaced(server):
    assert server.ask("/", headers={"x-request-id": "a b<script>"}).headers["x-request-id"] != "a b<script>"


BODIES = {
    "empty": (b"", 400),
    "no-json": (b"{", 400),
    "trailing-garbage": (b'{"inputs": "a"} x', 400),
    "nan-literal": (b'{"inputs": NaN}', 400),
    "invalid-utf8": (b'{"inputs": "\xff"}', 400),
    "lone-surrogate": (b'{"inputs": "hi \\ud800"}', 400),
    "null": (b"null", 422),
    "a-string": (b'"text"', 422),
    "an-empty-object": (b"{}", 422),
    "an-empty-list": (b'{"inputs": []}', 422),
    "an-empty-text": (b'{"inputs": ""}', 422),
    "an-empty-text-in-a-list": (b'{"inputs": [""]}', 422),
    "a-null-item": (b'{"inputs": [null]}', 422),
    "a-number-item": (b'{"inputs": [1]}', 422),
    "a-nested-list": (b'{"inputs": [["a"]]}', 422),
    "an-unknown-field": (b'{"inputs": "a", "input": "b"}', 422),
    "an-unknown-parameter": (b'{"inputs": "a", "parameters": {"tims": 2}}', 422),
    "parameters-of-a-wrong-type": (b'{"inputs": "a", "parameters": {"times": "2"}}', 422),
    "parameters-that-are-no-object": (b'{"inputs": "a", "parameters": [1]}', 422),
    "too-many-items": (json.dumps({"inputs": ["a"] * 101}).encode(), 413),
    "too-many-bytes": (json.dumps({"inputs": "x" * 6000}).encode(), 413),
    "deeply-nested": (b'{"inputs": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_refused_with_one_sentence(server, name):
    body, status = BODIES[name]
    reply = server.ask(PATH, body)
    assert reply.status == status, reply.body
    assert set(reply.json) == {"detail", "code", "request_id"}
    assert "Error" not in reply.json["detail"], "no class names leak"


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        ("application/json; charset=utf-16", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
def test_only_json_in_utf8_is_read(server, content_type, status):
    assert server.ask(PATH, b'{"inputs": "a"}', headers={"content-type": content_type}).status == status


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("seq_0=a&seq_0=b", 422),
        ("seq0=a", 422),
        ("seq_0=%ff", 400),
        ("seq_0=", 422),
        ("seq_0=%00", 200),
    ],
)
def test_a_query_is_read_strictly(server, query, status):
    """A misspelt or empty field must never be answered with the built-in example."""
    assert server.ask(f"{PATH}?{query}").status == status


@pytest.mark.parametrize(
    "path",
    [
        "/predictions_neuron_core_1/model_0",
        "/predictions_neuron_core_0/model_0",
        "/anything/model_0",
        f"/predictions_neuron_core_{CORE}/model_9",
        f"/predictions_neuron_core_{CORE}/model_-1",
        f"/predictions_neuron_core_{CORE}/model_00",
        f"/predictions_neuron_core_{CORE}/MODEL_0",
        f"{PATH}/",
        f"/predictions_neuron_core_{CORE}/%2e%2e",
    ],
)
def test_a_wrong_core_or_model_is_a_404_that_names_what_exists(server, path):
    """Core 1 is not core 10, and an unknown model is no server error."""
    reply = server.ask(path)
    assert reply.status == 404
    assert PATH in reply.json["detail"]
    assert f"core {CORE}" in reply.json["detail"]
    assert "location" not in reply.headers


def test_a_wrong_method_is_a_405_that_names_the_right_ones(server):
    reply = server.ask(PATH, b"{}", method="PUT")
    assert reply.status == 405
    assert set(reply.json) == {"detail", "code", "request_id"}
    assert reply.headers["allow"] == "GET, POST"


def test_health_answers(server):
    assert server.ask("/").json == {"Status": "Healthy"}
    assert server.ask("/livez").status == 200
    assert server.ask("/readyz").status == 200


def test_info_says_what_runs_here(server):
    info = server.ask("/info").json
    assert info["core"] == CORE
    assert set(info["models"]) == {"model_0", "model_1"}
    assert info["pid"] == server.process.pid


def test_the_api_page_lists_the_real_paths_and_every_error(server):
    paths = server.ask("/openapi.json").json["paths"]
    assert {PATH, "/predictions/model_1", "/readyz"} <= set(paths)
    assert {"404", "413", "422", "429", "503", "504"} <= set(paths[PATH]["post"]["responses"])
    assert server.ask("/docs").status == 200


def test_a_long_query_works_up_to_the_stated_limit_and_is_refused_beyond(server):
    assert ask(server.port, f"{PATH}?seq_0={'x' * 60_000}").status == 200
    assert 400 <= ask(server.port, f"{PATH}?seq_0={'x' * 200_000}").status < 500


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", "", "9" * 400, "9" * 5000])
def test_a_deadline_header_must_be_a_whole_number_of_milliseconds(server, value):
    assert server.ask(PATH, {"inputs": "a"}, headers={"x-request-timeout-ms": value}).status == 422


def test_every_error_of_a_request_has_a_status():
    def leaves(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from leaves(child)

    assert set(leaves(RequestError)) == set(STATUS)
