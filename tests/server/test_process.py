"""The life of a core server: deadlines, callers that leave, a stuck core, and how the process ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time

import pytest

from support.servers import DEADLINE_S, scripted_server, until

PATH = "/predictions_neuron_core_0/model_0"


def in_background(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def join():
        thread.join(DEADLINE_S)
        return results[0]

    return join


def is_running(server):
    return server.ask("/info").json["load"]["is_running"]


def test_health_is_answered_while_the_model_computes(tmp_path):
    """A forward pass on the event loop would delay it by a second."""
    with scripted_server(tmp_path) as server:
        server.wait_ready()
        slow = in_background(lambda: server.ask(PATH, {"inputs": "slow"}))
        worst = 0.0
        answered = 0
        while answered < 20:
            began = time.monotonic()
            assert server.ask("/readyz").status == 200
            worst = max(worst, time.monotonic() - began)
            answered += 1
        assert slow().status == 200
        assert worst < 0.5


def test_a_passed_deadline_is_a_504_while_the_batch_still_runs(tmp_path):
    with scripted_server(tmp_path, request_timeout_ms=200) as server:
        server.wait_ready()
        began = time.monotonic()
        reply = server.ask(PATH, {"inputs": "slow"})
        assert reply.status == 504
        assert time.monotonic() - began < 0.9, "answered at its deadline, not at the batch's end"
        assert until("the core is free again", lambda: server.ask(PATH, {"inputs": "a"}).status == 200)


@pytest.mark.parametrize(("configured_ms", "header_ms"), [(60000, 100), (100, 60000)])
def test_the_header_lowers_the_deadline_and_cannot_raise_it(tmp_path, configured_ms, header_ms):
    with scripted_server(tmp_path, request_timeout_ms=configured_ms) as server:
        server.wait_ready()
        assert server.ask(PATH, {"inputs": "slow"}, headers={"x-request-timeout-ms": str(header_ms)}).status == 504


def test_rows_of_a_caller_who_left_never_reach_the_core(tmp_path):
    with scripted_server(tmp_path) as server:
        server.wait_ready()
        slow = in_background(lambda: server.ask(PATH, {"inputs": "slow"}))
        until("it runs", lambda: is_running(server))
        body = json.dumps({"inputs": ["slow"] * 8}).encode()
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", server.port)) as caller:
                head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                caller.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert slow().status == 200
        began = time.monotonic()
        assert server.ask(PATH, {"inputs": "a"}).status == 200
        assert time.monotonic() - began < 3, "20 abandoned batches of a second each would have taken longer"


def test_a_full_queue_is_a_429_that_says_when_to_come_back(tmp_path):
    with scripted_server(tmp_path, max_queue_rows=2) as server:
        server.wait_ready()
        slow = [in_background(lambda: server.ask(PATH, {"inputs": "slow"})) for _ in range(6)]
        replies = [join() for join in slow]
        refused = [reply for reply in replies if reply.status == 429]
        assert refused
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert {reply.status for reply in replies} == {200, 429}


def test_a_stuck_core_is_not_ready_answers_who_waits_and_ends_with_5(tmp_path):
    with scripted_server(tmp_path, request_timeout_ms=60000) as server:
        server.wait_ready()
        waiting = in_background(lambda: server.ask(PATH, {"inputs": "hang"}))
        assert server.process.wait(DEADLINE_S) == 5
        reply = waiting()
        assert reply.status == 503
        assert reply.headers["retry-after"]
        assert "corelane: error: a batch took" in server.output


def test_a_lost_core_answers_who_waits_and_ends_with_5(tmp_path):
    with scripted_server(tmp_path) as server:
        server.wait_ready()
        reply = server.ask(PATH, {"inputs": "lose"})
        assert reply.status == 503
        assert reply.headers["retry-after"]
        assert server.process.wait(DEADLINE_S) == 5
        assert "corelane: error: scripted to be lost" in server.output


def test_a_stuck_core_ends_in_time_when_it_is_asked_to(tmp_path):
    """Its caller has had a 504 and nothing else keeps the server: the core's thread must not either."""
    with scripted_server(tmp_path, request_timeout_ms=200, drain_timeout_ms=20000) as server:
        server.wait_ready()
        assert server.ask(PATH, {"inputs": "hang"}).status == 504
        began = time.monotonic()
        assert server.end() in (5, 6)
        assert time.monotonic() - began < 12


def test_a_draining_server_says_that_it_is_not_ready(tmp_path):
    with scripted_server(tmp_path) as server:
        server.wait_ready()
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        slow = in_background(lambda: server.ask(PATH, {"inputs": "slow"}))
        until("it runs", lambda: is_running(server))
        kept.request("GET", "/readyz")
        assert kept.getresponse().read() == b'{"status":"ready"}'
        server.process.send_signal(signal.SIGTERM)
        until("the signal was taken", lambda: "draining" in server.output)
        assert slow().status == 200
        assert server.process.wait(DEADLINE_S) == 0
        kept.close()


def test_requests_that_outlast_the_drain_time_are_told_and_the_exit_code_says_so(tmp_path):
    with scripted_server(tmp_path, drain_timeout_ms=300) as server:
        server.wait_ready()
        slow = in_background(lambda: server.ask(PATH, {"inputs": "slow"}))
        until("it runs", lambda: is_running(server))
        assert server.end() == 6
        assert slow().status == 503


def test_half_a_request_does_not_keep_the_server(tmp_path):
    with scripted_server(tmp_path, drain_timeout_ms=500) as server:
        server.wait_ready()
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf".encode())
            began = time.monotonic()
            assert server.end() == 0
            assert time.monotonic() - began < 4
        assert "Traceback" not in server.output


def test_a_signal_while_it_loads_ends_it_as_asked(tmp_path):
    with scripted_server(tmp_path, environment={"SCRIPTED_LOAD_S": "60"}) as server:
        until("it loads", lambda: "loading" in server.output)
        assert server.end() == 0


def test_sigterm_answers_what_runs_and_exits_0(tmp_path):
    with scripted_server(tmp_path) as server:
        server.wait_ready()
        idle = socket.create_connection(("127.0.0.1", server.port))
        slow = in_background(lambda: server.ask(PATH, {"inputs": "slow"}))
        until("the request runs", lambda: is_running(server))
        assert server.end() == 0
        assert slow().status == 200
        idle.close()


def test_sigterm_during_a_hang_ends_within_the_drain_time_with_6(tmp_path):
    with scripted_server(tmp_path, drain_timeout_ms=500, request_timeout_ms=60000) as server:
        server.wait_ready()
        hanging = in_background(lambda: server.ask(PATH, {"inputs": "hang"}))
        until("the hang began", lambda: is_running(server))
        began = time.monotonic()
        assert server.end() == 6
        assert time.monotonic() - began < 4
        reply = hanging()
        assert reply.status == 503
        assert reply.headers["retry-after"]


def test_a_second_sigterm_ends_at_once(tmp_path):
    with scripted_server(tmp_path, drain_timeout_ms=30000) as server:
        server.wait_ready()
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(f"GET {PATH}?seq_0=hang HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            until("the hang began", lambda: is_running(server))
            server.process.send_signal(signal.SIGTERM)
            until("the first signal was taken", lambda: "draining" in server.output)
            assert server.end() == 6


def test_a_taken_port_is_a_sentence_and_exit_2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with scripted_server(tmp_path, port=taken) as server:
            assert server.process.wait(DEADLINE_S) == 2
            assert f"port {taken} of 127.0.0.1 cannot be taken" in server.output


def test_of_two_servers_on_one_port_one_serves_and_the_other_says_why_not(tmp_path):
    """Both bind while neither listens; the second to listen must not end in a traceback."""
    slow = {"SCRIPTED_LOAD_S": "0.5"}
    with (
        scripted_server(tmp_path, environment=slow) as first,
        scripted_server(tmp_path, port=first.port, environment=slow) as second,
    ):
        until("one has ended", lambda: first.process.poll() is not None or second.process.poll() is not None)
        loser, winner = (first, second) if first.process.poll() is not None else (second, first)
        assert loser.process.returncode == 2
        assert "cannot be taken" in loser.log.read_text()
        winner.wait_ready()


HALF = (
    f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n".encode()
    + b'{"inputs"'
)


def test_a_body_that_does_not_come_is_a_408_at_the_deadline(tmp_path):
    """Half a body must not hold a connection for ever."""
    with scripted_server(tmp_path, request_timeout_ms=300) as server:
        server.wait_ready()
        with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as caller:
            caller.sendall(HALF)
            assert b" 408 " in caller.recv(4096)
        assert server.ask(PATH, {"inputs": "a"}).status == 200


def test_what_is_still_being_sent_at_the_end_of_the_drain_is_told_so(tmp_path):
    with scripted_server(tmp_path, drain_timeout_ms=300) as server:
        server.wait_ready()
        with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as caller:
            caller.sendall(HALF)
            until("the server has it", lambda: server.ask("/livez").status == 200)
            server.end()
            answer = caller.recv(4096)
        assert b" 503 " in answer
        assert b"retry-after" in answer
