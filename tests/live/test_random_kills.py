"""Random kills of testbed's processes during a run under load: the run survives with all messages or reports the killed
process and no other.

The tests check error, exit code, verdict, events and leftovers. CI kills each kind once; TESTBED_LONG=1 makes a hundred
kills with new seeds.
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
FIRST_SEED = SystemRandom().randrange(2**32) if LONG else 1
KILLS = 100 if LONG else len(KINDS)
SEEDS = range(FIRST_SEED, FIRST_SEED + KILLS)

MESSAGES = 2_500  # enough to be in progress at the latest kill on a fast machine
MAX_KILL_TIME = 0.3  # seconds from the first messages to the kill
TIMEOUT = 60.0  # seconds for a run
NODES = ("n1", "n2", "n3")

# Findings that a busy machine may cause in any run.
MACHINE = {"softnet drops", "steal", "relay waiting", "relay lateness p99", "timer floor p99", "NIC lost", "relay lost"}
FINDINGS = {
    "relay": "relay gap", "supervisor": "supervisor gap", "namespace holder": "cluster ended",
    "node parent": "node parent gap", "NIC agent": "NIC agent gap",
}  # fmt: skip


def impaired() -> Description:
    """Return a star whose impairments only a relay can implement."""
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
    """Run random traffic in a cluster of its own."""
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
    invalid = {
        finding["what"]: finding["reason"]
        for finding in verdict["findings"]
        if finding["grade"] in ("invalid", "failed")
    }
    checks = json.loads((folder / "checks.json").read_text())
    violations = [violation for check in checks["checks"] for violation in check["violations"]]
    assert not violations, (seed, violations[:4], checks["circumstances"])
    return RunReport(error, code, verdict["grade"], invalid)


def children_of(pid: int, name: str) -> list[int]:
    """Return the descendants of `pid` whose names begin with `name`."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                front, _, back = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended meanwhile
                continue
            names[int(entry.name)], parents[int(entry.name)] = front.partition("(")[2], int(back.split()[1])

    def is_descendant(child: int) -> bool:
        while child := parents.get(child, 0):
            if child == pid:
                return True
        return False

    return sorted(child for child, child_name in names.items() if child_name.startswith(name) and is_descendant(child))


def find_process(kind: str, controller: int, cluster: str, rng: random.Random) -> int:
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
    candidates = children_of(controller, name)
    return rng.choice(candidates) if candidates else 0


def kinds() -> Iterable[tuple[int, str]]:
    """Pair each seed with the kind of process that it kills, taking the kinds in turn."""
    return [(seed, KINDS[number % len(KINDS)]) for number, seed in enumerate(SEEDS)]


@pytest.mark.timeout(1_800 if LONG else 120)
@pytest.mark.parametrize(("seed", "kind"), kinds())
def test_a_run_survives_or_reports_a_killed_process(seed: int, kind: str, tmp_path: Path, machine: Machine) -> None:
    rng = random.Random(seed)
    protocol, nics = ("emp", "shared") if kind == "NIC agent" else (rng.choice(["emp", "tcp"]), "inline")
    delay, folder = rng.uniform(0, MAX_KILL_TIME), tmp_path / "run"

    def run_and_report(report: Callable[[object], None]) -> None:
        report(run(folder, protocol, nics, seed))

    with background(run_and_report) as controller:
        pid, when, read_events = kill_process(kind, controller, folder, delay, rng)
        if kind == "controller":
            assert controller.wait() == -signal.SIGKILL
            assert not (folder / "result.json").exists()
        else:
            reported = controller.next_report()
            assert isinstance(reported, RunReport), reported
            assert controller.wait() == 0
            context = f"seed {seed}, {protocol}, {kind} {pid}: {reported}"
            assert_run_report(kind, pid, reported, context)
            assert_recorded(kind, pid, when, [*read(folder / "events.jsonl"), *read_events()], context)
    in_child(lambda: collect(Store()))
    machine.assert_unchanged(f"left behind after the kill of {kind}, seed {seed}")


def kill_process(
    kind: str, controller: Background, folder: Path, delay: float, rng: random.Random
) -> tuple[int, int, Callable[[], list[Mapping[str, Any]]]]:
    """Kill a process `delay` seconds after the first message; return its pid, wall-clock ns, and a function that reads the
    cluster's events."""
    eventually(
        lambda: any(path.stat().st_size for path in folder.glob("history/*.jsonl")), "messages are being sent", TIMEOUT
    )
    (cluster,) = [name for name in Store().names() if name.startswith("kills")]
    time.sleep(delay)  # a random time within the run
    pids = [find_process(kind, controller.pid, cluster, rng)]
    eventually(
        lambda: bool(pids[-1] or pids.append(find_process(kind, controller.pid, cluster, rng))), f"a {kind} is running"
    )
    directory = Store().directory(cluster)
    when = time.time_ns()
    os.kill(pids[-1], signal.SIGKILL)
    return pids[-1], when, lambda: list(event_log.read(directory))


def assert_run_report(kind: str, pid: int, reported: RunReport, context: str) -> None:
    """Assert that error, exit code and verdict match the killed process."""
    expected = FINDINGS.get(kind, "")
    if kind == "node process":
        assert reported.code == 1, context
        assert "its process was ended by signal 9" in reported.error, context
        assert reported.grade == "none", context
        return
    assert reported.grade == "invalid", context
    assert expected in reported.findings, context
    assert reported.findings.keys() - {expected} <= MACHINE, context
    assert reported.code == (9 if reported.error else 0), context
    if kind in ("node parent", "namespace holder", "NIC agent"):
        assert str(pid) in reported.error, context
    if kind == "supervisor":
        assert not reported.error, context


def assert_recorded(kind: str, pid: int, when: int, events: list[Mapping[str, Any]], context: str) -> None:
    """Assert that the events report exactly this death, and a restart at the first attempt before the end of the run."""
    deaths = {
        (str(event["event"]), int(event["pid"]))
        for event in events
        if str(event["event"]).endswith("died") and event.get("code", -1) < 0  # not a program that failed by itself
    }
    own = (f"{kind} died", pid)
    assert own in deaths, (context, deaths)
    if kind in ("relay", "supervisor", "node process", "NIC agent"):
        assert deaths == {own}, context
    if kind in ("relay", "supervisor"):
        (restarted,) = {event["pid"]: event for event in events if event["event"] == f"{kind} restarted"}.values()
        begin, end = restarted["gap"]
        assert when < begin < end < time.time_ns(), (context, restarted)
        assert not [event for event in events if event["event"] == f"{kind} not restarted"], context


def read(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
