"""From settings to the commands that run."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from corelane.fleet import plan as plans
from corelane.fleet.plan import Plan
from corelane.settings import Settings, load
from corelane.topology import place

CONFIG = """
docker_container_name_prefix=mine
num_cores=2
batch_sizes=8,1
path_to_traced_models=my models
task=feature-extraction
request_timeout_ms=off
compiled_model="a # b"
"""


def settings_of(root: Path, config: str = CONFIG, **environment: str) -> Settings:
    (root / "config.properties").write_text(config)
    return load(root, environment)


def drawn(settings: Settings, haproxy: Path | None = None, cpus: tuple[int, ...] | None = (4, 6)) -> Plan:
    placement = place(
        chip="cpu",
        instance_type="",
        num_cores=settings.num_cores,
        first_port=settings.first_port,
        gateway_port=None,
        name=settings.docker_container_name_prefix,
        cpus=cpus,
    )
    return plans.make(settings, placement, "demo@3", "sum", haproxy)


def test_each_core_is_one_pinned_server_with_its_number_and_port(tmp_path: Path) -> None:
    """The whole command, as it stands in the process list."""
    plan = drawn(settings_of(tmp_path))
    assert [member.name for member in plan.members] == ["core-0", "core-1"]
    core = plan.members[1]
    assert plans.tethered(core, 77) == [
        *(sys.executable, "-I", "-S", str(plans.TETHER)),
        *("--cpus", "6", "--parent", "77", "--"),
        *(sys.executable, "-m", "corelane", "serve", "--core", "1", "--port", "8082"),
    ]
    assert core.environment["NEURON_RT_VISIBLE_CORES"] == "1"
    assert core.environment["OMP_NUM_THREADS"] == "1"


def test_the_gateway_is_unpinned_and_knows_nothing_of_the_cores_environment(tmp_path: Path) -> None:
    """It serves all of them."""
    plan = drawn(settings_of(tmp_path), haproxy=Path("/opt/haproxy"))
    assert plan.gateway is not None
    assert plan.gateway.command[0] == "/opt/haproxy"
    assert plan.gateway.cpus is None
    assert plan.gateway.environment == {}
    assert set(plan.files) == {"haproxy.cfg", "cores.map", "config.properties", ".env"}


def test_a_core_that_is_restarted_next_week_has_the_settings_of_today(tmp_path: Path) -> None:
    """Whatever is edited or traced meanwhile: all cores of a deployment serve alike until the next `up`."""
    settings = settings_of(tmp_path, CORELANE_MAX_QUEUE_ROWS="7", CHIP_TYPE="inf2", AWS_REGION="x")
    plan = drawn(settings)
    folder = tmp_path / "frozen"
    folder.mkdir()
    for name, content in plan.files.items():
        (folder / name).write_text(content, encoding="utf-8")
    environment = plans.member_environment(plan.cores[0], {"CORELANE_NUM_CORES": "9", "CORELANE_CONFIG": "gone"})
    again = load(folder, environment)
    meant = replace(settings, root=folder, compiled_model="demo@3", runtime="process", aws_region="")
    differences = {one.name for one in fields(again) if getattr(again, one.name) != getattr(meant, one.name)}
    assert differences == {"source"}
    assert again.path_to_traced_models == tmp_path / "my models"


def test_a_member_inherits_all_but_our_own_variables(tmp_path: Path) -> None:
    """The supervisor was started with them, and they would beat the settings that stand in its folder."""
    plan = drawn(settings_of(tmp_path))
    found = plans.member_environment(plan.cores[0], {"CORELANE_TASK": "x", "HOME": "/h"})
    assert found == {"HOME": "/h", **plan.cores[0].environment}


@pytest.mark.parametrize("change", ["edited", "added", "renamed"])
def test_other_code_is_another_deployment(tmp_path: Path, change: str) -> None:
    """After a pull `./deploy.sh` must not leave yesterday's code running because its version is the same."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("x = 1\n")
    before = plans.code_digest(tmp_path)
    if change == "edited":
        (tmp_path / "part" / "a.py").write_text("x = 2\n")
    elif change == "added":
        (tmp_path / "b.py").write_text("")
    else:
        (tmp_path / "part" / "a.py").rename(tmp_path / "part" / "b.py")
    assert plans.code_digest(tmp_path) != before


def test_our_own_code_is_part_of_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of nothing else: where no file changed, there is nothing to do."""
    plan = drawn(settings_of(tmp_path))
    digest = plan.digest
    assert plan.digest == digest
    monkeypatch.setattr(plans, "code_digest", lambda: "other")
    assert plan.digest != digest


@pytest.mark.parametrize("words", [("auto", "process"), ("process", "auto")])
def test_auto_and_process_are_one_deployment(tmp_path: Path, words: tuple[str, str]) -> None:
    """`./deploy.sh` and `./deploy.sh --runtime process` must not restart each other's servers."""
    digests = {drawn(settings_of(tmp_path, CORELANE_RUNTIME=word)).digest for word in words}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"bundle": "demo@4"},
        {"bundle_checksum": "other"},
        {"drain_timeout_ms": 1},
        {"files": {"haproxy.cfg": "x"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_makes_a_difference_to_what_runs_changes_the_digest(tmp_path: Path, change: dict[str, object]) -> None:
    """It decides whether `up` has anything to do."""
    plan = drawn(settings_of(tmp_path))
    assert replace(plan, **change).digest != plan.digest  # type: ignore[arg-type]


def test_other_cpus_are_another_deployment(tmp_path: Path) -> None:
    """A machine that was resized."""
    settings = settings_of(tmp_path)
    assert drawn(settings, cpus=(0, 1)).digest != drawn(settings, cpus=(4, 6)).digest


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """The supervisor gets it as one; the digest is the same there."""
    plan = drawn(settings_of(tmp_path), haproxy=Path("/opt/haproxy"))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest


def test_a_relative_import_path_stays_right_in_another_folder() -> None:
    """`PYTHONPATH=src python3 -m corelane up`, whose servers run in the deployment's folder."""
    found = plans.child_environment({"PYTHONPATH": f"src{os.pathsep}/opt/x", "HOME": "/h"})
    assert found == {"PYTHONPATH": f"{os.getcwd()}/src{os.pathsep}/opt/x", "HOME": "/h"}
