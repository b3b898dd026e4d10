"""`scripts/bench --serve-only` is what other programs measure: it serves in the foreground, and ends when told."""

from __future__ import annotations

import os
import sys

import pytest

from support.deployments import PROJECT
from support.servers import ask, free_port, started, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("job", "path"),
    [("sim", "/predictions_neuron_core_0/model_0"), ("cpu", "/predictions/model_0")],
)
def test_it_serves_until_it_is_told_to_end_and_leaves_no_process(job, path, tmp_path):
    """A measuring program signals the process that it started, which therefore is the server or its supervisor."""
    port = free_port()
    command = [str(PROJECT / "scripts" / "bench"), job, "--serve-only", "--port", str(port)]
    environment = {"CORELANE_VENV": sys.prefix, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}

    def answered():
        assert server.process.poll() is None, server.output
        try:
            return ask(port, path, {"inputs": "a text"}).status == 200
        except OSError:
            return False

    with started(command, port, tmp_path, environment) as server:
        until(f"{job} answers", answered)
        assert server.end() == 0
    with pytest.raises(OSError, match="refused"):
        ask(port, path)
