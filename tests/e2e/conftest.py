"""A clean clone, deployed once for all tests of this folder, the way a new user does it."""

from __future__ import annotations

import pytest

from support.deployments import Deployment, clone, free_run_of_ports


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    root = clone(tmp_path_factory.mktemp("clone"))
    first = free_run_of_ports(3)
    made = Deployment(root, first_port=first + 1, gateway_port=first)
    assert not (root / ".venv").exists()
    made_by = made.run("deploy.sh")
    assert made_by.returncode == 0, made_by.stdout + made_by.stderr
    (root / "first-deploy.log").write_text(made_by.stdout)
    yield made
    stopped = made.run("scripts/stop")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
