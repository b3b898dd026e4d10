"""The command line: what it says before any verb's own work begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"


def corelane(folder: Path, *arguments: str, python: tuple[str, ...] = (sys.executable,)):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CORELANE_", "NEURON_"))}
    return subprocess.run(
        [*python, "-m", "corelane", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("verb", ["trace", "serve", "up", "down", "status", "logs", "load"])
def test_every_verb_has_a_help_that_names_the_exit_codes(tmp_path, verb):
    found = corelane(tmp_path, verb, "--help")
    assert found.returncode == 0
    assert "exit codes: 0" in found.stdout


def test_a_mistake_in_the_configuration_is_one_sentence_and_exit_2(tmp_path):
    (tmp_path / "config.properties").write_text("num_core=2\n")
    found = corelane(tmp_path, "up", "--dry-run")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1
    assert "num_cores" in found.stderr


@pytest.mark.parametrize("verb", ["status", "down"])
def test_what_runs_can_be_seen_and_stopped_while_the_configuration_has_a_mistake(tmp_path, verb):
    """By the settings of what was deployed last, and it says so."""
    (tmp_path / "config.properties").write_text("num_core=2\n")
    deployed = tmp_path / ".corelane" / "mine"
    deployed.mkdir(parents=True)
    (deployed / "config.properties").write_text("docker_container_name_prefix=mine\n")
    found = corelane(tmp_path, verb)
    assert "mine" in found.stdout
    assert "warning" in found.stderr
    assert "deployed last" in found.stderr


@pytest.mark.parametrize("verb", ["trace", "serve", "load"])
def test_a_missing_package_is_a_sentence_that_says_what_to_run(tmp_path, verb):
    """Without site-packages, as in a clone before anything is installed."""
    (tmp_path / "config.properties").write_text("")
    found = corelane(tmp_path, verb, python=(sys.executable, "-S"))
    assert found.returncode == 2
    assert "./deploy.sh" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("core", ["-1", "999"])
def test_a_core_that_does_not_exist_is_refused_before_anything_is_loaded(tmp_path, core):
    (tmp_path / "config.properties").write_text("")
    found = corelane(tmp_path, "serve", "--core", core)
    assert found.returncode == 2
    assert "cores 0 to" in found.stderr


def test_a_core_that_the_environment_contradicts_is_refused(tmp_path, monkeypatch):
    (tmp_path / "config.properties").write_text("")
    environment = dict(os.environ, PYTHONPATH=str(SOURCE), NEURON_RT_VISIBLE_CORES="10-10")
    found = subprocess.run(
        [sys.executable, "-m", "corelane", "serve", "--core", "1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert "NEURON_RT_VISIBLE_CORES=10-10" in found.stderr
