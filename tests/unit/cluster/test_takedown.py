"""Takedown and collection of clusters, and deaths and ends meanwhile: of holders, faults, sharings and namespaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cluster import garbage, removal, startup
from testbed.cluster.faults import background_load, fault_injection
from testbed.cluster.faults.injections import Injection
from testbed.cluster.records.state import SharedNics, State, Store
from testbed.cluster.running_cluster import Fault
from testbed.cluster.services.namespace_holder import HolderClient
from testbed.cluster.services.service_kinds import Agents
from testbed.errors import ConflictError, DescriptionError, KernelError
from testbed.kernel import cgroups
from testbed.kernel.processes import Identity, identity
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

NAME = "takedown-test"
LAYOUT = resolve(Description.star(2))


def state(owner: Identity, *, lasting: bool) -> State:
    return State(NAME, "/one/star.toml", "up", lasting, owner, LAYOUT, {}, {}, 0, holder=owner)


def test_remains_without_a_state_are_taken_down(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    with store.locked(NAME, 1) as directory:
        (directory / "hosts").write_text("")
    removal.down(store, NAME)
    assert store.names() == []


def test_a_process_that_does_not_end_is_reported_and_the_collection_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in a node's cgroup that has left the namespaces, and is blocked in the kernel."""
    stuck = [4711]
    group = tmp_path / "netns-testbed.takedown-test.n1"
    monkeypatch.setattr(garbage, "is_root", lambda: False)  # objects of other clusters on this machine are ignored
    monkeypatch.setattr(garbage, "collect_temporary", lambda: ())
    monkeypatch.setattr(cgroups, "groups_of", lambda _: [group])
    monkeypatch.setattr(cgroups, "members", lambda _: stuck)
    monkeypatch.setattr(cgroups, "end", lambda _: not stuck)
    store = Store(tmp_path / "root")
    with store.locked(NAME, 1):
        store.write(state(identity(), lasting=True))
    message = f"cgroups cannot be removed: {group.name}: processes 4711 do not end"
    with pytest.raises(KernelError, match=message):
        removal.down(store, NAME)
    remaining = store.choose(NAME)
    assert remaining.phase == "removing"
    with store.locked(NAME, 1):
        store.write(replace(remaining, owner=replace(identity(), start=1)))  # the command has ended
    assert garbage.collect(store) == [garbage.Finding(f"cluster {NAME}", False, f"it cannot be removed: {message}")]
    stuck.clear()
    assert [finding.removed for finding in garbage.collect(store)] == [True]
    assert store.names() == []


def test_a_user_does_not_replace_a_cluster_of_a_running_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "root")
    with store.locked(NAME, 1):
        store.write(state(identity(), lasting=False))
    monkeypatch.setattr("testbed.kernel.userns.is_root", lambda: False)
    monkeypatch.setattr("testbed.kernel.userns.call_inside", lambda _, act: act())
    monkeypatch.setattr(removal, "down", lambda *_: pytest.fail("the cluster is taken down"))
    with pytest.raises(ConflictError, match="belongs to the running process"):
        startup.bring_up(store, LAYOUT, name=NAME, origin="/other/star.toml", lasting=True, replace_other=True)


def test_a_fault_that_heals_while_it_is_lifted_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "root")
    healed = state(identity(), lasting=True)
    with store.locked(NAME, 1):
        store.write(replace(healed, injected=(Injection(1, "down: n1", down=("n1--s1",)),)))
    heal = fault_injection.heal

    def heal_meanwhile(store: Store, name: str, numbers: Sequence[int]) -> None:
        store.write(healed)
        heal(store, name, numbers)

    monkeypatch.setattr(fault_injection, "heal", heal_meanwhile)
    Fault(store, NAME, 1, "down: n1").lift()


def test_an_agent_whose_sharing_has_just_ended_is_not_started(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    with store.locked(NAME, 1):
        shared = state(identity(), lasting=True)
        store.write(replace(shared, nics=SharedNics("emp", 2, 0, identity()), phase="removing"))
        with pytest.raises(ConflictError, match="n1: the sharing of its NIC has ended"):
            Agents(store, NAME).start("n1")


def test_a_load_without_a_rate_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="more than 0"):
        background_load.send_traffic(Store(tmp_path), state(identity(), lasting=True), ["n1"], "n2", 0, 0)
    with pytest.raises(DescriptionError, match=f"at most {os.cpu_count() or 1:.0%}"):
        background_load.use_processor(Store(tmp_path), state(identity(), lasting=True), ["n1"], 1e6, 0)


def test_a_namespace_that_is_removed_meanwhile_does_not_end_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alias_of(_: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(garbage, "is_root", lambda: True)
    monkeypatch.setattr(garbage, "collect_temporary", lambda: ())
    monkeypatch.setattr(garbage.namespaces, "names", lambda: ["gone"])
    monkeypatch.setattr(garbage.namespaces, "alias_of", alias_of)
    monkeypatch.setattr(garbage.processes, "all_pids", list)
    monkeypatch.setattr(garbage.cgroups, "clusters", set)
    monkeypatch.setattr(removal, "tidy", lambda _: None)
    assert garbage.collect(Store(tmp_path / "root")) == []


def test_the_death_of_the_namespace_holder_is_reported() -> None:
    client_end, holder_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with client_end, holder_end:
        holder_end.shutdown(socket.SHUT_WR)
        with pytest.raises(KernelError, match="holder has died"):
            HolderClient(identity(), client_end).hold({"n1": 0})
