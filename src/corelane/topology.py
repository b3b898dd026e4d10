"""Chips, instance types, and placement: which core, device, CPUs, port and environment each server gets.

A leaf that needs the standard library alone; all of it is pure but `available_cpus`. Core indexes are those
of the whole host, as the Neuron runtime counts them. Here alone NEURON_RT_VISIBLE_CORES is read and written.
Who starts what is placed, and whether a chip is carried, is decided elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corelane.errors import ConfigError


@dataclass(frozen=True)
class Chip:
    """One kind of accelerator, a `cpu` being its own device. `stack` names what compiles and runs for it."""

    name: str
    cores_per_device: int
    device_memory_gib: int
    stack: str


@dataclass(frozen=True)
class Instance:
    """An EC2 instance type as sold."""

    name: str
    chip: str
    devices: int
    vcpus: int
    host_memory_gib: int


# AWS Neuron documentation, architecture pages of each chip. Cores are the visible ones: Trainium2 and 3 show
# two physical cores
# as one logical (LNC=2) unless told otherwise. Memory of a `cpu` is the host's, hence 0 here.
CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("cpu", 1, 0, "openvino"),
        Chip("inf1", 4, 8, "neuron"),
        Chip("inf2", 2, 32, "neuronx"),
        Chip("trn1", 2, 32, "neuronx"),
        Chip("trn2", 4, 96, "neuronx"),
        Chip("trn3", 4, 144, "neuronx"),
    )
}

# The same pages; trn2.3xlarge from the Neuron deployment manifests and EC2. No page names a single-host
# Trainium3 type yet.
INSTANCES: dict[str, Instance] = {
    instance.name: instance
    for instance in (
        Instance("inf1.xlarge", "inf1", 1, 4, 8),
        Instance("inf1.2xlarge", "inf1", 1, 8, 16),
        Instance("inf1.6xlarge", "inf1", 4, 24, 48),
        Instance("inf1.24xlarge", "inf1", 16, 96, 192),
        Instance("inf2.xlarge", "inf2", 1, 4, 16),
        Instance("inf2.8xlarge", "inf2", 1, 32, 128),
        Instance("inf2.24xlarge", "inf2", 6, 96, 384),
        Instance("inf2.48xlarge", "inf2", 12, 192, 768),
        Instance("trn1.2xlarge", "trn1", 1, 8, 32),
        Instance("trn1.32xlarge", "trn1", 16, 128, 512),
        Instance("trn1n.32xlarge", "trn1", 16, 128, 512),
        Instance("trn2.3xlarge", "trn2", 1, 12, 128),
        Instance("trn2.48xlarge", "trn2", 16, 192, 2048),
        Instance("trn2u.48xlarge", "trn2", 16, 192, 2048),
    )
}

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
PROCESS_TAG = "NEURON_PROCESS_TAG"
# The runtime cuts or refuses a longer one.
MAX_PROCESS_TAG_CHARACTERS = 255
LAST_PORT = 65535
# Above the largest system there is (1,152 cores); the bound keeps 0-999999999 from filling the memory.
MAX_CORE = 4095


# ----------------------------------------------------------------------------------------------------------
# NEURON_RT_VISIBLE_CORES
# ----------------------------------------------------------------------------------------------------------


_RANGE = re.compile(r"(0|[1-9][0-9]{0,5})(?:-(0|[1-9][0-9]{0,5}))?")


def parse_visible_cores(text: str) -> tuple[int, ...]:
    """The cores that `N`, `A-B` or a comma list of both names: ascending, no gap, as the runtime demands.

    What its pages leave open (blanks, hexadecimal, signs, nothing at all) is refused before it is asked.
    """
    asked = f"{VISIBLE_CORES}={text!r}"
    cores: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            found = f"holds {part!r}" if part else "names no core in one place"
            raise ConfigError(
                f"{asked} {found}; write cores such as 3 and ranges such as 0-3, in decimal digits, - and commas alone"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{asked} holds the range {part}, which runs backwards; write {last}-{first}")
        if last > MAX_CORE:
            raise ConfigError(f"{asked} names core {last}, and no system has more than {MAX_CORE + 1}; correct it")
        if cores and first <= cores[-1]:
            raise ConfigError(
                f"{asked} names core {first} after core {cores[-1]}; write each core once, in ascending order"
            )
        if cores and first > cores[-1] + 1:
            raise ConfigError(
                f"{asked} has a gap between core {cores[-1]} and core {first}; the runtime takes neighbours only"
            )
        cores.extend(range(first, last + 1))
    return tuple(cores)


def format_visible_cores(cores: Sequence[int]) -> str:
    """The shortest text for these cores, `N` or `A-B`; ConfigError when they are no ascending run."""
    if not cores:
        raise ConfigError(f"{VISIBLE_CORES} was asked for no core at all; name at least one")
    if cores[0] < 0 or list(cores) != list(range(cores[0], cores[0] + len(cores))):
        raise ConfigError(
            f"{VISIBLE_CORES} was asked for the cores {_list(cores)}; "
            "the runtime takes ascending neighbours from 0 on only"
        )
    return str(cores[0]) if len(cores) == 1 else f"{cores[0]}-{cores[-1]}"


# ----------------------------------------------------------------------------------------------------------
# Addresses
# ----------------------------------------------------------------------------------------------------------

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (compared, not bound)


def reached_at(address: str) -> str:
    """Where to reach a server of this machine that listens on this address: nobody can connect to "everywhere"."""
    return _EVERYWHERE.get(address, address)


def in_url(address: str) -> str:
    """The address as it stands in a URL."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


# ----------------------------------------------------------------------------------------------------------
# Placement
# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """What one server gets before it starts. `core` is its number N; `cpus` is None where it is unpinned."""

    core: int
    cores: tuple[int, ...]
    device: str | None
    cpus: tuple[int, ...] | None
    port: int
    environment: dict[str, str]


@dataclass(frozen=True)
class Placement:
    """All servers of a deployment, and what a person should know about them, in sentences."""

    chip: str
    assignments: tuple[Assignment, ...]
    notes: tuple[str, ...]


def available_cpus() -> tuple[int, ...] | None:
    """The CPUs that this process may run on, ascending; None where the system has no such call (macOS)."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return tuple(sorted(os.sched_getaffinity(0)))


def place(
    *,
    chip: str,
    instance_type: str,
    num_cores: int | Literal["all"],
    cores_per_server: int = 1,
    first_port: int,
    gateway_port: int | None,
    name: str,
    cpus: tuple[int, ...] | None,
    devices: int | None = None,
) -> Placement:
    """Give every server its core, device, CPUs, port and environment; ConfigError when that cannot be.

    `cpus`: what `available_cpus` answers; on `cpu`, core N is the N-th of them. `devices`: how many Neuron
    devices were found here, when somebody looked; it beats what the instance type is sold with.
    `gateway_port`: None without a gateway.
    """
    if chip not in CHIPS:
        raise ConfigError(f"CHIP_TYPE={chip} is no known chip; set one of {', '.join(CHIPS)}")
    notes: list[str] = []
    if chip == "cpu":
        existing, home = _cores_of_cpu(instance_type, num_cores, cpus, notes)
    else:
        existing, home = _cores_of_devices(CHIPS[chip], instance_type, devices, cores_per_server, notes)
    asked = existing if num_cores == "all" else num_cores
    if asked > existing:
        notes.append(f"num_cores={asked} is more than the {existing} cores of {home}, so {existing} are used")
    usable = min(asked, existing)
    servers = usable // cores_per_server
    if servers < 1:
        raise ConfigError(
            f"cores_per_server={cores_per_server} needs more than the {usable} cores that num_cores and "
            f"{home} give; lower it"
        )
    if servers * cores_per_server < usable:
        idle = usable - servers * cores_per_server
        notes.append(
            f"{idle} of {usable} cores stay idle, because cores_per_server={cores_per_server} does not divide them"
        )
    groups = [
        tuple(range(first, first + cores_per_server))
        for first in range(0, servers * cores_per_server, cores_per_server)
    ]
    _check_ports(first_port, last_core=groups[-1][0], gateway_port=gateway_port)
    return Placement(
        chip=chip,
        assignments=tuple(_assignment(CHIPS[chip], cores, cpus, first_port, name) for cores in groups),
        notes=tuple(notes),
    )


def place_configured(settings: Any, *, has_gateway: bool, cpus: tuple[int, ...] | None) -> Placement:
    """`place` for a whole configuration (a settings.Settings, which a leaf cannot name)."""
    return place(
        chip=settings.chip_type,
        instance_type=settings.instance_type,
        num_cores=settings.num_cores,
        cores_per_server=settings.cores_per_server,
        first_port=settings.first_port,
        gateway_port=settings.gateway_port if has_gateway else None,
        name=settings.docker_container_name_prefix,
        cpus=cpus,
    )


def _cores_of_cpu(
    instance_type: str, num_cores: int | Literal["all"], cpus: tuple[int, ...] | None, notes: list[str]
) -> tuple[int, str]:
    """How many cores there are, and a name for what has them."""
    if instance_type:
        raise ConfigError(
            f"instance_type={instance_type} was given, but with CHIP_TYPE=cpu the cores are this machine's "
            "CPUs; "
            "leave it empty or set CHIP_TYPE to the instance's chip"
        )
    if cpus is None:
        if num_cores == "all":
            raise ConfigError(
                "num_cores=all was asked for, and this system does not say which CPUs there are; give a number"
            )
        notes.append(
            "this system cannot bind a process to a CPU, so the servers run unpinned and num_cores is taken as given"
        )
        return num_cores, "this machine"
    if not cpus:
        raise ConfigError("no CPU is in the affinity mask of this process; start it with at least one")
    return len(cpus), f"this machine (CPUs {_list(cpus)})"


def _cores_of_devices(
    chip: Chip, instance_type: str, devices: int | None, cores_per_server: int, notes: list[str]
) -> tuple[int, str]:
    """As above, for a Neuron chip."""
    if chip.cores_per_device % cores_per_server:
        # A server has one device.
        raise ConfigError(
            f"cores_per_server={cores_per_server} does not divide the {chip.cores_per_device} cores of one "
            f"{chip.name} device; "
            "set a number that does"
        )
    known = [instance.name for instance in INSTANCES.values() if instance.chip == chip.name]
    if instance_type and instance_type not in known:
        other = INSTANCES.get(instance_type)
        found = f"has the chip {other.chip}, not {chip.name}" if other else "is not known"
        raise ConfigError(f"instance_type={instance_type} {found}; {_set_one_of(known, chip)}")
    if instance_type:
        sold = INSTANCES[instance_type].devices
        if devices is not None and devices != sold:
            notes.append(
                f"{instance_type} is sold with {sold} devices, but {devices} were found here, and those are used"
            )
        count, home = (sold if devices is None else devices), instance_type
    elif devices is not None:
        count, home = devices, f"the {devices} {chip.name} devices found here"
    else:
        raise ConfigError(
            f"CHIP_TYPE={chip.name} needs an instance_type to know its cores, and none is set; "
            f"{_set_one_of(known, chip)}"
        )
    if count < 1:
        raise ConfigError(
            f"CHIP_TYPE={chip.name} was asked for, and no {chip.name} device was found here; check the driver"
        )
    return count * chip.cores_per_device, home


def _set_one_of(known: Sequence[str], chip: Chip) -> str:
    if known:
        return f"set instance_type to one of {', '.join(known)}"
    return f"no instance type of {chip.name} is known here yet, so choose another chip"


def _check_ports(first_port: int, last_core: int, gateway_port: int | None) -> None:
    last_port = first_port + last_core
    if first_port < 1 or last_port > LAST_PORT:
        raise ConfigError(
            f"first_port={first_port} puts the {last_core + 1} cores on the ports {first_port} to "
            f"{last_port}; "
            f"choose one so that all are from 1 to {LAST_PORT}"
        )
    if gateway_port is not None and first_port <= gateway_port <= last_port:
        raise ConfigError(
            f"gateway_port={gateway_port} is among the ports {first_port} to {last_port} that "
            f"first_port={first_port} and "
            f"{last_core + 1} cores take; move one of the two"
        )


def _assignment(
    chip: Chip, cores: tuple[int, ...], cpus: tuple[int, ...] | None, first_port: int, name: str
) -> Assignment:
    core = cores[0]
    tag = f"{name}-core{core}"
    if len(tag) > MAX_PROCESS_TAG_CHARACTERS:
        raise ConfigError(
            f"the name {name[:20]}... makes a process tag of {len(tag)} characters, and the runtime takes "
            f"{MAX_PROCESS_TAG_CHARACTERS}; choose a shorter one"
        )
    environment = {VISIBLE_CORES: format_visible_cores(cores), PROCESS_TAG: tag}
    port = first_port + core
    if chip.name != "cpu":
        device = f"/dev/neuron{core // chip.cores_per_device}"
        return Assignment(core, cores, device, cpus=None, port=port, environment=environment)
    # More threads than CPUs would take turns on them, with every other server's as well.
    environment |= {"OMP_NUM_THREADS": str(len(cores)), "TOKENIZERS_PARALLELISM": "false"}
    pinned = None if cpus is None else tuple(cpus[index] for index in cores)
    return Assignment(core, cores, device=None, cpus=pinned, port=port, environment=environment)


def _list(numbers: Sequence[int]) -> str:
    """For messages: all of a few, the ends of many."""
    shown = [str(number) for number in numbers]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "...", shown[-1]])
