"""Which endpoints a deployment has, from its settings alone: one per model on every core. Pure.

Nothing is found by asking around: a core that is down is still a target, so that its absence is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from corelane.errors import ConfigError
from corelane.settings import Settings
from corelane.topology import Placement, in_url, place_configured, reached_at

CORES, GATEWAY, BOTH = "cores", "gateway", "both"
THROUGH = (CORES, GATEWAY, BOTH)

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]?")


@dataclass(frozen=True)
class Target:
    """One endpoint. `core` None: the gateway's pooled route, which any core of the deployment may answer."""

    core: int | None
    model: int
    through: str  # CORES or GATEWAY
    url: str

    @property
    def name(self) -> str:
        """As it stands in tables and in the last line."""
        place_name = "any core" if self.core is None else f"core {self.core}"
        return f"{place_name} model_{self.model}" + (" (gateway)" if self.through == GATEWAY else "")


@dataclass(frozen=True)
class Deployment:
    """Where the cores answer and what there is to call."""

    targets: tuple[Target, ...]
    info_urls: dict[int, str]  # core -> its own server's /info
    notes: tuple[str, ...]  # sentences of the placement, such as a capped number of cores


def deployment(
    settings: Settings, cpus: Sequence[int] | None, through: str = CORES, host: str | None = None
) -> Deployment:
    """The targets of `settings`; `cpus` as topology.available_cpus() gives them.

    Raises ConfigError when the gateway is asked for and the settings have none.
    """
    has_gateway = settings.gateway != "none"
    if through != CORES and not has_gateway:
        raise ConfigError(
            f"--through {through} was asked for, but gateway=none; use --through cores or set gateway=auto"
        )
    placement = place_configured(settings, has_gateway=has_gateway, cpus=None if cpus is None else tuple(cpus))
    address = _address(host or settings.bind_address)
    return Deployment(
        targets=endpoints(placement, settings.num_models_per_server, address, settings.gateway_port, through),
        info_urls={one.core: f"http://{address}:{one.port}/info" for one in placement.assignments},
        notes=placement.notes,
    )


def endpoints(
    placement: Placement, models: int, address: str, gateway_port: int, through: str = CORES
) -> tuple[Target, ...]:
    """Every model on every core, at the core's own port, at the gateway (and its pooled routes), or both."""
    found: list[Target] = []
    for side, is_asked in ((CORES, through != GATEWAY), (GATEWAY, through != CORES)):
        if not is_asked:
            continue
        for one in placement.assignments:
            port = one.port if side == CORES else gateway_port
            for model in range(models):
                path = f"predictions_neuron_core_{one.core}/model_{model}"
                found.append(Target(one.core, model, side, f"http://{address}:{port}/{path}"))
        if side == GATEWAY:
            pooled = f"http://{address}:{gateway_port}/predictions"
            found += [Target(None, model, side, f"{pooled}/model_{model}") for model in range(models)]
    return tuple(found)


def _address(host: str) -> str:
    if not _HOST.fullmatch(host):
        raise ConfigError(f"--host {host!r} is no host; give a name or an address, without scheme, port or path")
    return in_url(reached_at(host))
