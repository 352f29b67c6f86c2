"""Random kills of the tool's processes during a loaded run: the run survives with all messages or blames the killed
process alone.

Error, exit code, verdict and events are checked, and that nothing is left behind. CI kills each kind once; the
long mode makes a hundred kills of fresh seeds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

import testbed as product
from testbed.cluster.garbage import collect
from testbed.cluster.records.state import Store
from testbed.errors import TestbedError
from testbed.kernel import locks
from testbed.kernel.children import in_child
from testbed.runtime import event_log
from testbed.runtime.supervision import service_lock, supervisor_lock
from testbed.spec.model import Description, Link, Node, Switch
from tests.live.forked_children import Background, background
from tests.live.machine_state import Machine, eventually

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LONG = bool(os.environ.get("TESTBED_LONG"))
KINDS = ("relay", "supervisor", "namespace holder", "node parent", "node process", "NIC agent", "controller")
FIRST = SystemRandom().randrange(2**32) if LONG else 1
KILLS = 100 if LONG else len(KINDS)
SEEDS = range(FIRST, FIRST + KILLS)

MESSAGES = 2_500  # which outlast the latest death on a fast machine, too
LATEST = 0.3  # s from the first messages to the death
TIMEOUT = 60.0  # s, for a run
NODES = ("n1", "n2", "n3")

# What a busy machine makes a run invalid for, whoever dies.
MACHINE = {"softnet drops", "steal", "relay waiting", "relay lateness p99", "timer floor p99", "NIC lost", "relay lost"}
FINDINGS = {
    "relay": "relay gap", "supervisor": "supervisor gap", "namespace holder": "cluster ended",
    "node parent": "node parent gap", "NIC agent": "NIC agent gap",
}  # fmt: skip


def impaired() -> Description:
    """A star that only a relay can carry."""
    links = [
        Link(ends=["n1", "s1"], delay="300us"),
        Link(ends=["n2", "s1"], corrupt="0.2%"),
        Link(ends=["n3", "s1"], delay="100us", loss="0.2%"),
    ]
    return Description(
        name="kills", nodes=[Node(name=name) for name in NODES], switches=[Switch(name="s1")], links=links
    )


@dataclass(frozen=True, slots=True)
class RunReport:
    """Outcome of a run: error and exit code, grade, findings with their reasons, number of received messages."""

    error: str
    code: int
    grade: str
    findings: Mapping[str, str]


def run(folder: Path, protocol: str, nics: str, seed: int) -> RunReport:
    """A run in a cluster that it brings up for itself."""
    error, code = "", 0
    try:
        product.run(
            impaired(), "random", protocol=protocol, nics=nics, settings={"messages": MESSAGES}, seed=seed,
            output=folder, timeout=TIMEOUT,
        )  # fmt: skip
    except TestbedError as raised:
        error, code = str(raised), raised.exit_code
    result = json.loads((folder / "result.json").read_text())
    verdict = result.get("verdict") or {"grade": "none", "findings": []}
    bad = {
        finding["what"]: finding["reason"]
        for finding in verdict["findings"]
        if finding["grade"] in ("invalid", "failed")
    }
    checks = json.loads((folder / "checks.json").read_text())
    accused = [violation for check in checks["checks"] for violation in check["violations"]]
    assert not accused, (seed, accused[:4], checks["circumstances"])
    return RunReport(error, code, verdict["grade"], bad)


def children_of(pid: int, name: str) -> list[int]:
    """Return the descendants of `pid` whose names begin with `name`."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                front, _, back = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended
                continue
            names[int(entry.name)], parents[int(entry.name)] = front.partition("(")[2], int(back.split()[1])

    def descends(one: int) -> bool:
        while one := parents.get(one, 0):
            if one == pid:
                return True
        return False

    return sorted(first for first, called in names.items() if called.startswith(name) and descends(first))


def victim(kind: str, controller: int, cluster: str, chance: random.Random) -> int:
    """Return a process of that kind; 0 while there is none."""
    directory = Store().directory(cluster)
    match kind:
        case "relay":
            return locks.holder(service_lock(directory, "relay", 0))
        case "supervisor":
            return locks.holder(supervisor_lock(directory))
        case "namespace holder":
            state = Store().read(cluster)
            return state.holder.pid if state is not None and state.holder is not None else 0
        case "controller":
            return controller
    name = {"node parent": "testbed-nodes", "node process": "node ", "NIC agent": "nic "}[kind]
    children_found = children_of(controller, name)
    return chance.choice(children_found) if children_found else 0


def kinds() -> Iterable[tuple[int, str]]:
    """Pair each seed with the kind of process that it kills, taking the kinds in turn."""
    return [(seed, KINDS[number % len(KINDS)]) for number, seed in enumerate(SEEDS)]


@pytest.mark.timeout(1_800 if LONG else 120)
@pytest.mark.parametrize(("seed", "kind"), kinds())
def test_whoever_is_killed_under_load_is_survived_or_named(
    seed: int, kind: str, tmp_path: Path, machine: Machine
) -> None:
    chance = random.Random(seed)
    protocol, nics = ("emp", "shared") if kind == "NIC agent" else (chance.choice(["emp", "tcp"]), "inline")
    moment, folder = chance.uniform(0, LATEST), tmp_path / "run"

    def go_on(report: Callable[[object], None]) -> None:
        report(run(folder, protocol, nics, seed))

    with background(go_on) as controller:
        pid, when, told_to = killed(kind, controller, folder, moment, chance)
        if kind == "controller":
            assert controller.wait() == -signal.SIGKILL
            assert not (folder / "result.json").exists()
        else:
            reported = controller.next_report()
            assert isinstance(reported, RunReport), reported
            assert controller.wait() == 0
            where = f"seed {seed}, {protocol}, {kind} {pid}: {reported}"
            judge(kind, pid, reported, where)
            assert_recorded(kind, pid, when, [*read(folder / "events.jsonl"), *told_to()], where)
    in_child(lambda: collect(Store()))
    machine.assert_unchanged(f"left behind by the death of {kind}, seed {seed}")


def killed(
    kind: str, controller: Background, folder: Path, moment: float, chance: random.Random
) -> tuple[int, int, Callable[[], list[Mapping[str, Any]]]]:
    """Kill a process of a kind at a moment after the first message; return its pid, wall-clock ns, and the cluster's
    events until it is gone."""
    eventually(lambda: any(path.stat().st_size for path in folder.glob("history/*.jsonl")), "messages go", TIMEOUT)
    (cluster,) = [name for name in Store().names() if name.startswith("kills")]
    time.sleep(moment)  # the moment is what is tried
    actual = [victim(kind, controller.pid, cluster, chance)]
    eventually(
        lambda: bool(actual[-1] or actual.append(victim(kind, controller.pid, cluster, chance))), f"there is a {kind}"
    )
    directory = Store().directory(cluster)
    when = time.time_ns()
    os.kill(actual[-1], signal.SIGKILL)
    return actual[-1], when, lambda: list(event_log.read(directory))


def judge(kind: str, pid: int, reported: RunReport, where: str) -> None:
    """Check that the run's end, exit code and verdict fit the killed process."""
    named = FINDINGS.get(kind, "")
    if kind == "node process":
        assert reported.code == 1, where
        assert "its process was ended by signal 9" in reported.error, where
        assert reported.grade == "none", where
        return
    assert reported.grade == "invalid", where
    assert named in reported.findings, where
    assert reported.findings.keys() - {named} <= MACHINE, where
    assert reported.code == (9 if reported.error else 0), where
    if kind in ("node parent", "namespace holder", "NIC agent"):
        assert str(pid) in reported.error, where
    if kind == "supervisor":
        assert not reported.error, where


def assert_recorded(kind: str, pid: int, when: int, events: list[Mapping[str, Any]], where: str) -> None:
    """Check that the events report exactly this death, and a restart at the first attempt before the run's end."""
    deaths = {
        (str(event["event"]), int(event["pid"]))
        for event in events
        if str(event["event"]).endswith("died")
        and event.get("code", -1) < 0  # a program that has failed ends by itself
    }
    own = (f"{kind} died", pid)
    assert own in deaths, (where, deaths)
    if kind in ("relay", "supervisor", "node process", "NIC agent"):
        assert deaths == {own}, where
    if kind in ("relay", "supervisor"):
        (back,) = {event["pid"]: event for event in events if event["event"] == f"{kind} restarted"}.values()
        begin, end = back["gap"]
        assert when < begin < end < time.time_ns(), (where, back)
        assert not [event for event in events if event["event"] == f"{kind} not restarted"], where


def read(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
