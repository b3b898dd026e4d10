"""The verbs over real settings, as far as they go without a model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corelane.bundle import Bundle
from corelane.errors import BundleError, ConfigError, StartError
from corelane.fleet import commands, gateway
from corelane.fleet import logs as logfiles
from corelane.fleet.deployment import bring_up, look
from corelane.fleet.state import Folder
from corelane.settings import Settings, load
from support.fleets import SOURCE, Said, eventually, exits, free_ports, make_plan
from support.traced import simulated

CONFIG = "docker_container_name_prefix=tested\nmodel_name=./model\ncompiled_model=tiny\nnum_cores=1\n"


@pytest.fixture
def settings(root: Path) -> Settings:
    return settings_of(root)


def settings_of(root: Path, more: str = "", **environment: str) -> Settings:
    (root / "config.properties").write_text(CONFIG + more)
    return load(root, environment)


def dry_run(settings: Settings) -> int:
    return commands.up(settings, dry_run=True, foreground=False, retrace=False)


def up(settings: Settings) -> int:
    return commands.up(settings, dry_run=False, foreground=False, retrace=False)


def test_a_dry_run_prints_every_command_and_changes_nothing(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """To see what would happen, before anything does."""
    before = sorted(settings.root.rglob("*"))
    assert dry_run(settings) == 0
    printed = capsys.readouterr().out
    assert f"{sys.executable} -m corelane trace\n" in printed
    assert "corelane.fleet.supervisor" in printed
    assert "NEURON_RT_VISIBLE_CORES=0" in printed
    assert "serve --core 0 --port 8081" in printed
    assert "haproxy -db -f" in printed
    assert sorted(settings.root.rglob("*")) == before


def test_a_dry_run_of_too_many_cores_says_how_many_there_are(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Capped with a sentence, not refused."""
    (root / "config.properties").write_text(CONFIG.replace("num_cores=1", "num_cores=4000"))
    assert dry_run(load(root, {})) == 0
    printed = capsys.readouterr().out
    cpus = len(os.sched_getaffinity(0))
    assert f"# num_cores=4000 is more than the {cpus} cores" in printed
    assert printed.count("serve --core") == cpus


def test_a_dry_run_needs_the_standard_library_alone(root: Path) -> None:
    """In a clone before anything is installed: no site, no packages, no HAProxy."""
    (root / "config.properties").write_text(CONFIG)
    script = "import sys; sys.path.append(sys.argv.pop()); from corelane.cli import main; sys.exit(main())"
    bare = [sys.executable, "-I", "-S", "-c", script, "up", "--dry-run", str(SOURCE)]
    found = subprocess.run(bare, cwd=root, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "haproxy -db" in found.stdout


def test_without_a_gateway_none_is_started(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gateway=none: each core at its own port."""
    assert dry_run(settings_of(root, "gateway=none\n")) == 0
    assert "haproxy" not in capsys.readouterr().out


def test_a_chip_that_is_not_carried_is_refused(root: Path) -> None:
    """Never served on the CPU in silence."""
    with pytest.raises(ConfigError, match="CHIP_TYPE=inf2 was asked for, and this version serves on cpu only"):
        dry_run(settings_of(root, CHIP_TYPE="inf2"))


def test_a_missing_haproxy_is_a_sentence_and_no_failure(
    root: Path, copied: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cores are reached at their own ports; here the start ends at the stale bundle, after it."""
    copied(task="feature-extraction")
    monkeypatch.setattr(gateway, "find", lambda: None)
    with pytest.raises(BundleError):
        up(settings_of(root, "sequence_lengths=16\n"))
    assert commands.NO_HAPROXY in capsys.readouterr().err


def test_a_stale_bundle_is_refused_with_the_keys_that_differ(root: Path, copied: Callable[..., Bundle]) -> None:
    """It would answer, but not as configured."""
    copied()
    with pytest.raises(BundleError, match=r"sequence_lengths .*`--retrace`"):
        up(settings_of(root, "sequence_lengths=64\nbatch_sizes=1,2\n"))


def test_a_simulation_is_deployed_only_where_compiled_model_names_it(root: Path) -> None:
    """Nothing of the configuration makes it stale, and a model of its name does not bring it up."""
    made = simulated(root, "model", times="1x32=1")
    named = settings_of(root, "sequence_lengths=64\n", CORELANE_COMPILED_MODEL="model")
    assert commands._fresh_bundle(named).label == made.label
    with pytest.raises(BundleError, match="compiled_model=model to serve the simulation"):
        up(settings_of(root, CORELANE_COMPILED_MODEL=""))


def test_a_version_that_does_not_exist_is_refused_and_nothing_is_traced(
    root: Path, copied: Callable[..., Bundle]
) -> None:
    """Tracing makes a new version, never the one that was asked for."""
    copied()
    with pytest.raises(BundleError, match="tiny@7 does not exist"):
        up(settings_of(root, CORELANE_COMPILED_MODEL="tiny@7"))


def test_a_trace_that_fails_ends_up_with_its_exit_code(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said why; nothing is started."""
    monkeypatch.setattr(commands, "_trace_command", lambda retrace: [sys.executable, "-c", "raise SystemExit(2)"])
    assert up(settings_of(root)) == 2
    assert not (root / ".corelane").exists()


def test_tracing_downloads_through_the_proxies_of_the_configuration(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's client reads no .env."""
    (root / ".env").write_text("HTTPS_PROXY=http://proxy.example:1\n")
    script = "import os, sys; sys.exit(7 if os.environ.get('https_proxy') == 'http://proxy.example:1' else 8)"
    monkeypatch.setattr(commands, "_trace_command", lambda retrace: [sys.executable, "-c", script])
    assert up(settings_of(root)) == 7


def test_a_restarted_core_keeps_its_settings_whatever_stands_in_the_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of an edit is in config.properties when a core dies in the night; a real server, so that it reads them."""
    simulated(root, "model", times="1x128=1")
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    (port,) = free_ports(1)
    assert up(settings_of(root, f"gateway=none\nfirst_port={port}\n", CORELANE_COMPILED_MODEL="model")) == 0
    folder = Folder.of(root, "tested")
    before = look(folder).members["core-0"]["pid"]
    (root / "config.properties").write_text("num_coers=2\n")
    (root / "docker.properties").write_text("${x}\n")
    (root / ".env").write_text("CHIP_TYPE=mine\n")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: look(folder).members["core-0"]["restarts"] == 1, "core 0 is started again")
    eventually(lambda: look(folder).members["core-0"]["state"] != "starting", "it has read its settings")
    found = look(folder)
    assert found.verdict == "ready", found.members["core-0"]["last_exit"]
    assert found.members["core-0"]["pid"] != before


def test_a_damaged_bundle_does_not_end_what_runs(root: Path, said: Said, copied: Callable[..., Bundle]) -> None:
    """What is running is sound, and worth more than what would be refused."""
    bring_up(make_plan(root), say=said.say, announce=said.announce)
    with (copied().path / "model.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BundleError, match=r"has a changed model\.bin"):
        up(settings_of(root, "batch_sizes=1,2\nsequence_lengths=16,32\ngateway=none\n"))
    assert commands.status(load(root, {}), as_json=False) == 0


def test_the_status_of_what_runs_is_a_table_and_as_json_the_same(
    root: Path, settings: Settings, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """For eyes and for scripts."""
    plan = make_plan(root)
    bring_up(plan, say=said.say, announce=said.announce)
    assert commands.status(settings, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tested runs, all ready (stand-in@1, supervisor pid ")
    assert lines[1].split() == ["state", "since", "pid", "port", "cpus", "restarts", "last", "exit"]
    assert lines[2].split()[:3] == ["core", "0", "ready"]
    assert commands.status(settings, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["verdict"]) == ("tested", "ready")
    assert found["members"]["core-1"]["port"] == plan.ports[1]


def test_the_status_says_which_core_was_refused_and_why(
    root: Path, settings: Settings, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the start was given up as well."""
    with pytest.raises(StartError):
        bring_up(
            make_plan(root, commands=(exits(3, "bundle demo@1 has a changed model.bin."),)),
            say=said.say,
            announce=said.announce,
        )
    assert commands.status(settings, as_json=False) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("tested does not run\nthe last start, at ")
    assert "core 0 refused, exit 3 (bundle refused): bundle demo@1 has a changed model.bin" in printed


def test_down_says_what_it_did(root: Path, settings: Settings, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    """And doing nothing is fine."""
    bring_up(make_plan(root), say=said.say, announce=said.announce)
    assert commands.down(settings) == 0
    assert commands.down(settings) == 0
    assert capsys.readouterr().out == "tested is stopped\nnothing of tested was running\n"


@pytest.mark.parametrize("asked", ["0", 0, "core-0"], ids=str)
def test_the_log_of_one_core_is_printed_as_it_is(
    root: Path, settings: Settings, said: Said, capsys: pytest.CaptureFixture[str], asked: str | int
) -> None:
    """For other programs to read."""
    plan = make_plan(root)
    bring_up(plan, say=said.say, announce=said.announce)
    assert commands.logs(settings, asked, follow=False) == 0
    assert capsys.readouterr().out == f"listening on {plan.ports[0]}\n"


def test_all_logs_are_printed_with_their_names(
    root: Path, settings: Settings, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """To see what belongs together."""
    bring_up(make_plan(root), say=said.say, announce=said.announce)
    assert commands.logs(settings, None, follow=False) == 0
    names = {line.partition(" | ")[0].strip() for line in capsys.readouterr().out.splitlines()}
    assert names == {"core-0", "core-1", "supervisor"}


def test_the_logs_stand_in_the_order_of_the_cores(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """core 2 before core 10."""
    folder = Folder.of(settings.root, "tested")
    folder.make()
    for name in ("core-10", "gateway", "core-2", "core-x"):
        folder.log(name).write_text("a line\n")
    assert commands.logs(settings, None, follow=False) == 0
    names = [line.partition(" | ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert names == ["core-x", "core-2", "core-10", "gateway"]


@pytest.mark.parametrize("follow", [False, True])
def test_without_any_log_that_is_said(settings: Settings, capsys: pytest.CaptureFixture[str], follow: bool) -> None:
    """Silence could mean that nothing was wrong, or the wrong folder; and nothing is waited for."""
    assert commands.logs(settings, None, follow=follow) == 0
    assert "corelane: there are no logs of tested" in capsys.readouterr().err


def test_following_a_log_misses_nothing_that_is_written_while_it_is_printed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy core writes at every moment, also between what was there and what comes."""
    folder = Folder.of(settings.root, "tested")
    folder.make()
    folder.log("core-0").write_text("there\n")
    printed: list[str] = []

    def append(line: str) -> None:
        with folder.log("core-0").open("a") as log:
            log.write(f"{line}\n")

    def announce(line: str) -> None:
        printed.append(line)
        if line == "there":
            append("while it was printed")
        if line == "while it was waited for":
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_announce", announce)
    monkeypatch.setattr(logfiles.time, "sleep", lambda _: append("while it was waited for"))
    assert commands.logs(settings, "0", follow=True) == 0
    assert printed == ["there", "while it was printed", "while it was waited for"]


@pytest.mark.parametrize("asked", ["7", "x", "../../config", ""])
def test_a_log_that_does_not_exist_is_refused_naming_those_that_do(
    root: Path, settings: Settings, said: Said, asked: str
) -> None:
    """And no other file of this machine is printed."""
    bring_up(make_plan(root), say=said.say, announce=said.announce)
    with pytest.raises(ConfigError, match="core-0, core-1, supervisor"):
        commands.logs(settings, asked, follow=False)


def test_the_model_itself_need_not_be_there_once_it_is_traced(
    root: Path, copied: Callable[..., Bundle], tmp_path: Path
) -> None:
    """A bundle that was copied to a serving machine is all that is needed."""
    made = copied()
    shutil.rmtree(tmp_path / "model", ignore_errors=True)
    found = commands._fresh_bundle(settings_of(root, "batch_sizes=1,2\nsequence_lengths=16,32\n"))
    assert found.label == made.label
