"""topology: from a chip, a number of cores and ports to exactly one place for every server."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corelane.errors import ConfigError
from corelane.topology import (
    CHIPS,
    INSTANCES,
    Placement,
    available_cpus,
    format_visible_cores,
    in_url,
    parse_visible_cores,
    place,
    reached_at,
)


def placed(**changes: Any) -> Placement:
    """A placement of two servers on a CPU machine with two CPUs, but for `changes`."""
    asked: dict[str, Any] = {
        "chip": "cpu",
        "instance_type": "",
        "num_cores": 2,
        "first_port": 8081,
        "gateway_port": 8080,
        "name": "corelane",
        "cpus": (0, 1),
    }
    return place(**(asked | changes))


def neuron(chip: str, instance_type: str, **changes: Any) -> Placement:
    return placed(**({"chip": chip, "instance_type": instance_type, "num_cores": "all"} | changes))


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        placed(**changes)
    return str(caught.value)


# ---- NEURON_RT_VISIBLE_CORES -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", (0,)),
        ("1", (1,)),
        ("10", (10,)),
        ("10-10", (10,)),
        ("23", (23,)),
        ("63-63", (63,)),
        ("0-3", (0, 1, 2, 3)),
        ("3,4,5", (3, 4, 5)),
        ("2,3-5,6", (2, 3, 4, 5, 6)),
    ],
)
def test_visible_cores_are_whole_numbers_and_ranges(text: str, cores: tuple[int, ...]) -> None:
    """Core 10 is not core 1: the first character says nothing."""
    assert parse_visible_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "names no core in one place", id="empty"),
        pytest.param(",", "names no core in one place", id="comma"),
        pytest.param("1,", "names no core in one place", id="comma-at-the-end"),
        pytest.param(" 1", "holds ' 1'", id="blank-before"),
        pytest.param("1\n", r"holds '1\n'", id="line-end"),
        pytest.param("0, 1", "holds ' 1'", id="blank-inside"),
        pytest.param("0x1", "holds '0x1'", id="hexadecimal"),
        pytest.param("-1", "holds '-1'", id="negative"),
        pytest.param("+1", "holds '+1'", id="plus"),
        pytest.param("01", "holds '01'", id="leading-zero"),
        pytest.param("１", "holds '１'", id="other-digits"),
        pytest.param("1-2-3", "holds '1-2-3'", id="two-dashes"),
        pytest.param("all", "holds 'all'", id="word"),
        pytest.param("3,5,6", "gap between core 3 and core 5", id="gap"),
        pytest.param("4,3", "core 3 after core 4", id="descending"),
        pytest.param("3,3", "core 3 after core 3", id="twice"),
        pytest.param("0-3,2-5", "core 2 after core 3", id="overlap"),
        pytest.param("5-3", "runs backwards", id="backwards"),
        pytest.param("0-999999", "no system has more", id="too-many"),
    ],
)
def test_what_the_runtime_would_refuse_or_guess_is_refused_with_the_text_itself(text: str, reason: str) -> None:
    """The runtime's own message names neither the variable nor the part that is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_visible_cores(text)
    assert str(caught.value).startswith(f"NEURON_RT_VISIBLE_CORES={text!r} ")
    assert reason in str(caught.value)


@given(st.integers(0, 1200), st.integers(1, 200))
def test_cores_come_back_from_their_text(first: int, count: int) -> None:
    """Writing and reading are one grammar."""
    cores = tuple(range(first, first + count))
    assert parse_visible_cores(format_visible_cores(cores)) == cores


def test_one_core_is_written_as_one_number() -> None:
    """The form that every version of the runtime documents."""
    assert format_visible_cores((10,)) == "10"
    assert format_visible_cores([4, 5, 6]) == "4-6"


@pytest.mark.parametrize("cores", [(), (1, 3), (2, 1), (-1, 0), (1, 1)])
def test_cores_that_are_no_ascending_run_cannot_be_written(cores: tuple[int, ...]) -> None:
    """The runtime would refuse them later, in the server."""
    with pytest.raises(ConfigError, match="NEURON_RT_VISIBLE_CORES"):
        format_visible_cores(cores)


# ---- on the CPU --------------------------------------------------------------------------------------------


def test_core_n_is_the_nth_cpu_of_the_mask() -> None:
    """A container or a cpuset may own CPUs 2 and 5 alone."""
    placement = placed(cpus=(2, 5))
    assert [assignment.core for assignment in placement.assignments] == [0, 1]
    assert [assignment.cpus for assignment in placement.assignments] == [(2,), (5,)]
    assert [assignment.device for assignment in placement.assignments] == [None, None]
    assert placement.notes == ()


def test_a_server_gets_its_core_its_tag_and_one_thread_and_nothing_else() -> None:
    """What a server must know before it starts is in its environment, and only that."""
    assert placed(name="mine").assignments[1].environment == {
        "NEURON_RT_VISIBLE_CORES": "1",
        "NEURON_PROCESS_TAG": "mine-core1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def test_core_n_listens_on_first_port_plus_n() -> None:
    """Clients compute the port from the core."""
    assert [assignment.port for assignment in placed(first_port=9000, cpus=(0, 1)).assignments] == [
        9000,
        9001,
    ]


def test_all_means_every_cpu_of_the_mask() -> None:
    """And says nothing about it, since it is what was asked."""
    placement = placed(num_cores="all", cpus=(1, 3, 8))
    assert [assignment.cpus for assignment in placement.assignments] == [(1,), (3,), (8,)]
    assert placement.notes == ()


def test_more_cores_than_exist_are_capped_with_a_sentence() -> None:
    """A laptop runs the configuration of a large machine."""
    placement = placed(num_cores=40)
    assert len(placement.assignments) == 2
    assert placement.notes == ("num_cores=40 is more than the 2 cores of this machine (CPUs 0, 1), so 2 are used",)


def test_without_an_affinity_call_servers_run_unpinned_and_that_is_said() -> None:
    """macOS has none; a promise of pinning would be false."""
    placement = placed(cpus=None, num_cores=3)
    assert [assignment.cpus for assignment in placement.assignments] == [None, None, None]
    assert "unpinned" in placement.notes[0]
    assert "give a number" in refusal(cpus=None, num_cores="all")


def test_an_instance_type_on_the_cpu_is_a_contradiction() -> None:
    """Either the chip or the instance is wrong, and only the person knows which."""
    assert "CHIP_TYPE=cpu" in refusal(instance_type="inf2.xlarge")


def test_this_process_knows_its_own_cpus() -> None:
    """The real call of the system, against the system's own count."""
    cpus = available_cpus()
    if hasattr(os, "sched_getaffinity"):
        assert cpus == tuple(sorted(os.sched_getaffinity(0)))
    else:
        assert cpus is None


# ---- on Neuron chips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance_type", "cores", "last_device"),
    [
        ("inf1.xlarge", 4, "/dev/neuron0"),
        ("inf1.6xlarge", 16, "/dev/neuron3"),
        ("inf1.24xlarge", 64, "/dev/neuron15"),
        ("inf2.xlarge", 2, "/dev/neuron0"),
        ("inf2.8xlarge", 2, "/dev/neuron0"),
        ("inf2.24xlarge", 12, "/dev/neuron5"),
        ("inf2.48xlarge", 24, "/dev/neuron11"),
        ("trn1.2xlarge", 2, "/dev/neuron0"),
        ("trn1.32xlarge", 32, "/dev/neuron15"),
        ("trn1n.32xlarge", 32, "/dev/neuron15"),
        ("trn2.3xlarge", 4, "/dev/neuron0"),
        ("trn2.48xlarge", 64, "/dev/neuron15"),
    ],
)
def test_all_cores_of_an_instance_are_used_up_to_the_last_device(
    instance_type: str, cores: int, last_device: str
) -> None:
    """The table of instances, seen through what a deployment does with it."""
    assignments = neuron(INSTANCES[instance_type].chip, instance_type).assignments
    assert len(assignments) == cores
    assert assignments[-1].core == cores - 1
    assert assignments[-1].device == last_device
    assert assignments[-1].cpus is None


@pytest.mark.parametrize(
    ("chip", "instance_type", "count", "devices"),
    [
        pytest.param("inf2", "inf2.24xlarge", 12, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], id="inf2"),
        pytest.param("inf1", "inf1.6xlarge", 16, [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4, id="inf1"),
        pytest.param("trn1", "trn1.32xlarge", 5, [0, 0, 1, 1, 2], id="trn1"),
        pytest.param("trn2", "trn2.48xlarge", 9, [0] * 4 + [1] * 4 + [2], id="trn2-logical"),
    ],
)
def test_a_device_holds_as_many_cores_as_its_chip_has(
    chip: str, instance_type: str, count: int, devices: list[int]
) -> None:
    """Four to a device is true of Inferentia alone."""
    assignments = neuron(chip, instance_type, num_cores=count).assignments
    assert [assignment.device for assignment in assignments] == [f"/dev/neuron{device}" for device in devices]


def test_a_neuron_server_gets_its_core_and_its_tag_alone() -> None:
    """Core 10 is 10, in the variable and in the name."""
    assert neuron("inf2", "inf2.48xlarge").assignments[10].environment == {
        "NEURON_RT_VISIBLE_CORES": "10",
        "NEURON_PROCESS_TAG": "corelane-core10",
    }


def test_a_neuron_chip_needs_to_know_its_instance() -> None:
    """Guessing the number of devices would hand out cores that do not exist."""
    message = refusal(chip="inf2")
    assert "needs an instance_type" in message
    assert "inf2.xlarge, inf2.8xlarge, inf2.24xlarge, inf2.48xlarge" in message


@pytest.mark.parametrize(
    ("chip", "instance_type", "reason"),
    [
        pytest.param("inf2", "inf2.99xlarge", "is not known; set instance_type to one of inf2.xlarge", id="unknown"),
        pytest.param("inf2", "inf1.xlarge", "has the chip inf1, not inf2", id="other-chip"),
        pytest.param("trn3", "trn3.48xlarge", "no instance type of trn3 is known here yet", id="no-table"),
        pytest.param("gpu", "", "set one of cpu, inf1, inf2, trn1, trn2, trn3", id="unknown-chip"),
    ],
)
def test_an_unknown_instance_or_chip_is_refused_with_the_known_ones(chip: str, instance_type: str, reason: str) -> None:
    """Placement on a machine nobody knows would be a guess."""
    assert reason in refusal(chip=chip, instance_type=instance_type)


def test_devices_that_were_found_beat_what_the_instance_is_sold_with() -> None:
    """A container may see two of twelve."""
    placement = neuron("inf2", "inf2.48xlarge", devices=2)
    assert len(placement.assignments) == 4
    assert "12 devices, but 2 were found here" in placement.notes[0]
    assert len(neuron("trn3", "", devices=1).assignments) == 4
    assert "check the driver" in refusal(chip="inf2", devices=0)


def test_every_instance_has_a_known_chip() -> None:
    """The two tables fit together."""
    assert {instance.chip for instance in INSTANCES.values()} <= CHIPS.keys()
    assert all(name == instance.name for name, instance in INSTANCES.items())


# ---- several cores in one server ---------------------------------------------------------------------------


def test_a_server_of_two_cores_is_named_and_addressed_by_its_first() -> None:
    """So that core N and port first_port + N still belong together."""
    placement = neuron("inf2", "inf2.24xlarge", num_cores=5, cores_per_server=2)
    assert [assignment.cores for assignment in placement.assignments] == [(0, 1), (2, 3)]
    assert [assignment.port for assignment in placement.assignments] == [8081, 8083]
    assert placement.assignments[1].environment["NEURON_RT_VISIBLE_CORES"] == "2-3"
    assert placement.notes == ("1 of 5 cores stay idle, because cores_per_server=2 does not divide them",)


def test_a_server_stays_within_one_device() -> None:
    """It is handed one device file."""
    assert "does not divide the 2 cores" in refusal(chip="inf2", instance_type="inf2.24xlarge", cores_per_server=4)
    assert "lower it" in refusal(cores_per_server=3)


# ---- ports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"gateway_port": 8081}, "gateway_port=8081 is among the ports 8081 to 8082", id="first-core"),
        pytest.param({"gateway_port": 8082}, "gateway_port=8082 is among the ports 8081 to 8082", id="last-core"),
        pytest.param({"first_port": 65535}, "on the ports 65535 to 65536", id="past-the-last-port"),
        pytest.param({"first_port": 0}, "on the ports 0 to 1", id="port-zero"),
    ],
)
def test_ports_that_cannot_all_be_had_are_refused_with_the_numbers(changes: dict[str, int], reason: str) -> None:
    """Otherwise the last server, or the gateway, fails after the others are up."""
    assert reason in refusal(**changes)


def test_ports_next_to_each_other_are_fine() -> None:
    """The bounds themselves are usable."""
    placed(first_port=65534, gateway_port=65533)
    placed(gateway_port=8083)
    placed(gateway_port=None)


@given(
    mask=st.sets(st.integers(0, 300), min_size=1, max_size=40),
    num_cores=st.one_of(st.just("all"), st.integers(1, 64)),
    first_port=st.integers(1, 60000),
)
def test_no_two_servers_share_a_core_a_cpu_or_a_port(mask: set[int], num_cores: Any, first_port: int) -> None:
    """Whatever the machine, each server has a place of its own."""
    assignments = placed(
        cpus=tuple(sorted(mask)), num_cores=num_cores, first_port=first_port, gateway_port=None
    ).assignments
    assert [assignment.core for assignment in assignments] == list(range(len(assignments)))
    assert len({assignment.port for assignment in assignments}) == len(assignments)
    assert len({assignment.cpus for assignment in assignments}) == len(assignments)
    assert {cpu for assignment in assignments for cpu in assignment.cpus or ()} <= mask


def test_a_name_too_long_for_the_process_tag_is_refused() -> None:
    """The runtime takes 255 characters."""
    assert "choose a shorter one" in refusal(name="n" * 250)


@pytest.mark.parametrize(
    ("address", "target", "shown"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("::", "::1", "[::1]"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
    ],
)
def test_an_address_to_listen_on_is_not_always_one_to_ask(address: str, target: str, shown: str) -> None:
    """Nobody can connect to "everywhere"."""
    assert reached_at(address) == target
    assert in_url(reached_at(address)) == shown
