"""The endpoints follow from the settings, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from corelane.errors import ConfigError
from corelane.load.targets import Deployment, deployment
from corelane.settings import load


def deploy(tmp_path: Path, config: str, *, cpus: int = 8, **options: str | None) -> Deployment:
    (tmp_path / "config.properties").write_text(config)
    return deployment(load(tmp_path, {}), tuple(range(cpus)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cores", "models"), [(1, 1), (2, 2), (8, 3)])
def test_there_is_one_target_per_model_on_every_core(tmp_path: Path, cores: int, models: int) -> None:
    """Six fixed targets, whatever the configuration says, was the fault of the driver this one replaces."""
    found = deploy(tmp_path, f"num_cores={cores}\nnum_models_per_server={models}\nfirst_port=9000\n")
    assert [target.url for target in found.targets] == [
        f"http://127.0.0.1:{9000 + core}/predictions_neuron_core_{core}/model_{model}"
        for core in range(cores)
        for model in range(models)
    ]


def test_the_gateway_has_every_pinned_route_and_the_pooled_ones(tmp_path: Path) -> None:
    """The pooled route is a way of its own, and may fail alone."""
    found = deploy(tmp_path, "num_cores=2\nfirst_port=9001\ngateway_port=9000\n", through="gateway")
    assert [(target.core, target.url) for target in found.targets] == [
        (0, "http://127.0.0.1:9000/predictions_neuron_core_0/model_0"),
        (1, "http://127.0.0.1:9000/predictions_neuron_core_1/model_0"),
        (None, "http://127.0.0.1:9000/predictions/model_0"),
    ]


def test_both_is_the_cores_and_then_the_gateway(tmp_path: Path) -> None:
    """Each endpoint is counted for itself, however it was reached."""
    found = deploy(tmp_path, "num_cores=2\n", through="both")
    assert [target.through for target in found.targets] == ["cores"] * 2 + ["gateway"] * 3


def test_more_cores_than_there_are_is_said(tmp_path: Path) -> None:
    """Fewer targets than the configuration names must not go unnoticed."""
    found = deploy(tmp_path, "num_cores=8\n", cpus=2)
    assert len(found.targets) == 2
    assert any("8" in note for note in found.notes)


def test_a_gateway_that_the_settings_do_not_have_cannot_be_called(tmp_path: Path) -> None:
    """Refused connections would blame a server that was never meant to be there."""
    with pytest.raises(ConfigError, match="gateway=none"):
        deploy(tmp_path, "gateway=none\n", through="gateway")


@pytest.mark.parametrize(
    ("bind_address", "host", "reached"),
    [
        pytest.param("0.0.0.0", None, "127.0.0.1", id="every address is reached at loopback"),
        pytest.param("::", None, "[::1]", id="and so in version 6"),
        pytest.param("::1", None, "[::1]", id="brackets are added"),
        pytest.param("127.0.0.1", "localhost", "localhost", id="--host beats the settings"),
        pytest.param("127.0.0.1", "[::1]", "[::1]", id="brackets stay"),
    ],
)
def test_the_address_is_one_that_can_be_called(
    tmp_path: Path, bind_address: str, host: str | None, reached: str
) -> None:
    """What a server binds to is not always what a client can connect to."""
    found = deploy(tmp_path, f"num_cores=1\nbind_address={bind_address}\n", host=host)
    assert found.info_urls == {0: f"http://{reached}:8081/info"}


@pytest.mark.parametrize("host", ["http://localhost", "localhost:8081", "a b", "localhost/x"])
def test_what_is_no_host_is_refused_before_the_run(tmp_path: Path, host: str) -> None:
    """Otherwise each call of the run would fail for the same typing mistake."""
    with pytest.raises(ConfigError, match="is no host"):
        deploy(tmp_path, "num_cores=1\n", host=host)
