"""Exploration by single answers of an oracle that leaves some probes unanswered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.myrinet.mapper.explorer import explore
from protocols.myrinet.mapper.network_map import ContradictionError, Port, Topology
from protocols.myrinet.mapper.prober import Answer, HostAnswer, Probe
from tests.unit.protocols.mapper_networks import Cable, Myrinet, address, plug_cables

# Two ways lead to switch d, which has a neighbour of its own; only a has a host.
DIAMOND = plug_cables([(0, "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e")])


def explored(
    cables: list[Cable],
    lossy: bool = False,
    is_lost: Callable[[Probe], bool] = lambda _: False,
    answered: Callable[[Answer], Answer] = lambda answer: answer,
) -> tuple[Topology, list[Probe]]:
    """Return the map, and the requested probes."""
    network = Myrinet(cables, leaders=[])
    exploration = explore(0, 8, lambda: lossy)
    probes: list[Probe] = []
    try:
        while True:
            batch = next(exploration)
            for probe in batch.probes:
                if not batch.wanted(probe):
                    continue
                probes.append(probe)
                end, _ = network.leads_to(0, probe.route)
                if isinstance(end, int) and (probe.host or end == 0) and not is_lost(probe):
                    batch.answered(probe, answered(HostAnswer(end, 1, address(end)) if probe.host else None))
    except StopIteration as stop:
        return stop.value, probes


def test_a_switch_without_hosts_that_two_cables_lead_to_is_one() -> None:
    topology, _ = explored(DIAMOND)
    assert len(topology.ends) == 5
    assert not Myrinet(DIAMOND, leaders=[]).differences(topology)


def test_where_probes_are_lost_a_switch_is_known_again_though_one_of_its_ports_kept_silent() -> None:
    def is_lost(probe: Probe) -> bool:
        """Return whether the probe takes c to d and then the port of e."""
        return probe.route[:4] == (2, 1, 1, 0)

    assert (1, 1) in explored(DIAMOND)[0].routes  # d was first entered from b
    assert is_lost(next(probe for probe in explored(DIAMOND)[1] if is_lost(probe)))
    assert len(explored(DIAMOND, lossy=True, is_lost=is_lost)[0].ends) == 5
    with pytest.raises(ContradictionError):
        explored(DIAMOND, lossy=False, is_lost=is_lost)


def test_a_host_in_two_places_is_a_contradiction() -> None:
    cables = plug_cables([(number, "s") for number in range(3)])

    def answered(answer: Answer) -> Answer:
        return HostAnswer(1, 1, address(1)) if answer is not None and answer.number == 2 else answer

    with pytest.raises(ContradictionError, match="host 1 is at two ports"):
        explored(cables, answered=answered)


def test_two_cables_at_one_port_are_a_contradiction() -> None:
    topology = Topology(0)
    topology.add(())
    topology.attach(Port(0, 1), 7)
    with pytest.raises(ContradictionError, match="two cables at port 1 of switch 0"):
        topology.attach(Port(0, 1), 8)


def test_only_one_known_host_is_probed_on_a_cable_to_another_switch() -> None:
    """Both ends of the cable between b and c, when b's and c's hosts are known: up to the first, of 14 ports each."""
    hosts: list[tuple[str | int, str | int]] = [(0, "a"), (1, "b"), (2, "b"), (3, "b"), (4, "c")]
    topology, requested = explored(plug_cables([*hosts, ("a", "b"), ("a", "c"), ("b", "c")]))
    assert len(topology.ends) == 3
    assert len([probe for probe in requested if probe.host and len(probe.route) == 3]) <= 12
