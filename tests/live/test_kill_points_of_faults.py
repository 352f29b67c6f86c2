"""A command that impairs links or shares NICs is killed at any change: the cluster can be healed, converged and taken
down, and ``down`` or ``gc`` restores the machine's former state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.cluster import removal
from testbed.cluster.faults import fault_injection
from testbed.cluster.garbage import collect
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.records.state import SharedNics, Store
from testbed.cluster.services import nic_sharing
from testbed.cluster.startup import bring_up
from testbed.kernel import processes
from testbed.kernel.children import in_child
from testbed.runtime.supervision import running_supervisor
from testbed.spec.layout import Layout
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live.forked_children import changes_of, kill_after, kill_points
from tests.live.machine_state import Machine, eventually

pytestmark = pytest.mark.requires("root", "ping")

NAME = "victim"
Note = Callable[[str, object], None]


def layout(delay: str) -> Layout:
    return resolve(
        Description(
            name=NAME,
            nodes=[Node(name="n1"), Node(name="n2")],
            switches=[Switch(name="s1")],
            links=[Link(ends=["n1", "s1"], delay=delay), Link(ends=["n2", "s1"])],
        )
    )


PLAIN, DELAYED = layout("0"), layout("1ms")


def up(expected: Layout, *, dry_run: bool = False) -> ApplyResult:
    return bring_up(Store(), expected, name=NAME, origin="test", lasting=True, dry_run=dry_run)


def inject() -> None:
    fault_injection.inject(Store(), NAME, "n2", {"delay": 1_000_000})


def heal() -> None:
    fault_injection.heal(Store(), NAME)


def cut() -> None:
    fault_injection.cut(Store(), NAME, "n2")


def plug_in() -> None:
    fault_injection.heal_cut(Store(), NAME, "n2")


def down() -> None:
    removal.down(Store(), NAME)


def gc() -> None:
    collect(Store())


def test_up_of_an_impaired_cluster(machine: Machine, record_property: Note) -> None:
    def bring() -> ApplyResult:
        return up(DELAYED)

    changes = changes_of(bring)
    in_child(down)
    machine.assert_unchanged("after an undisturbed up and down")
    for count, after in kill_points(changes):
        kill_after(count, bring)
        in_child(gc)
        state = Store().read(NAME)
        if state is not None:
            assert state.phase == "up", f"killed after {after}"
            assert not up(DELAYED, dry_run=True).operations, f"killed after {after}"
            in_child(down)
        machine.assert_unchanged(f"up killed after change {count}, {after}")
    record_property("note", f"up of an impaired cluster: {len(changes)} changes")


def works() -> None:
    """Check that the cluster converges to its description, carries frames, and takes an injection and its heal."""
    outcome = up(PLAIN)
    assert outcome.state.phase == "up"
    fault_injection.heal(Store(), NAME)
    inject()
    state = Store().read(NAME)
    assert state is not None
    assert dict(state.datapaths) == {"n2:eth0--s1:2": "relay"}
    fault_injection.heal(Store(), NAME)
    assert not up(PLAIN, dry_run=True).operations


BEFORE = {heal: inject, plug_in: cut}


@pytest.mark.parametrize("action", [inject, heal, cut, plug_in])
def test_a_changed_injection(action: Callable[[], None], machine: Machine, record_property: Note) -> None:
    def begin() -> None:
        in_child(lambda: up(PLAIN))
        if action in BEFORE:
            in_child(BEFORE[action])

    begin()
    changes = changes_of(action)
    in_child(down)
    machine.assert_unchanged("after an undisturbed change")
    for count, after in kill_points(changes):
        begin()
        kill_after(count, action)
        in_child(works)
        in_child(down)
        machine.assert_unchanged(f"{action.__name__} killed after change {count}, {after}")
    record_property("note", f"{action.__name__}: {len(changes)} changes")


def share_and_stop() -> None:
    nics = SharedNics("emp", 1, 0, processes.identity())
    nic_sharing.share(Store(), NAME, nics)
    nic_sharing.stop(Store(), NAME, nics)


def shares_again() -> None:
    """Check that a NIC can be shared after its sharing was interrupted."""
    nics = SharedNics("emp", 2, 0, processes.identity())
    state = nic_sharing.share(Store(), NAME, nics)
    assert None not in nic_sharing.reports(Store(), state).values()
    nic_sharing.stop(Store(), NAME, nics)
    state = Store().read(NAME)
    assert state is not None
    assert (state.phase, state.nics) == ("up", None)
    # That of the interrupted sharing may take the lock only now; it finds that nothing needs it, and ends.
    eventually(lambda: running_supervisor(Store().directory(NAME)) is None, "no supervisor runs")
    assert not up(PLAIN, dry_run=True).operations


def test_sharing_nics(machine: Machine, record_property: Note) -> None:
    in_child(lambda: up(PLAIN))
    changes = changes_of(share_and_stop)
    in_child(down)
    machine.assert_unchanged("after undisturbed sharing")
    for count, after in kill_points(changes):
        in_child(lambda: up(PLAIN))
        kill_after(count, share_and_stop)
        in_child(shares_again)
        in_child(down)
        machine.assert_unchanged(f"sharing killed after change {count}, {after}")
    record_property("note", f"sharing: {len(changes)} changes")
