"""Supervised processes: required ones run, others end, dead ones are restarted, and repeated deaths delay the restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from testbed.cluster.services.services import FormerProcess, SupervisedProcesses
from testbed.engine.loop import Loop
from testbed.errors import TestbedError
from testbed.kernel import daemons, processes
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log

SECOND = 1_000_000_000
TIMEOUT = 10 * SECOND


class Sleepers:
    """Service whose processes sleep."""

    word = "sleeper"

    def __init__(self) -> None:
        self.desired: dict[str, object] = {}
        self.failing_starts = 0
        self.failing_reads = 0
        self.started = 0
        self.before: dict[str, FormerProcess] = {}
        self.cleaned_up: list[str] = []

    def required(self) -> Mapping[str, object]:
        self.read()
        return self.desired

    def former(self) -> Mapping[str, FormerProcess]:
        return self.before

    def clean_up(self, key: str) -> None:
        self.cleaned_up.append(key)

    def start(self, key: str) -> processes.Identity:
        if self.failing_starts:
            self.failing_starts -= 1
            raise TestbedError("not now")
        self.started += 1
        return daemons.start(key, (), lambda: None, signal.pause)

    def event_fields(self, key: str) -> Mapping[str, object]:
        return {"name": key}

    def read_counts(self, key: str) -> Mapping[str, int]:  # noqa: ARG002
        self.read()
        return {"started": self.started}

    def read(self) -> None:
        """Read from a disk that has errors."""
        if self.failing_reads:
            self.failing_reads -= 1
            raise TestbedError("no data")

    def losses(self, at_death: Mapping[str, int], at_restart: Mapping[str, int]) -> Mapping[str, object]:
        return {"more": at_restart["started"] - at_death["started"]} if at_death else {}


class Supervision:
    """Supervised processes in a loop, with their events."""

    def __init__(self, directory: Path) -> None:
        self.waiter = Waiter()
        self.loop = Loop(self.waiter)
        self.kind = Sleepers()
        self.processes = SupervisedProcesses(self.loop, directory, self.kind)
        self._directory = directory

    def events(self) -> list[str]:
        return [str(event["event"]) for event in event_log.read(self._directory)]

    def run_until(self, event: str, count: int = 1) -> None:
        """Run the loop until `event` has been reported `count` times."""
        self.loop.complete(self.wait_for(lambda: self.events().count(event) >= count))

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        end = self.loop.now() + TIMEOUT
        while not condition():
            assert self.loop.now() < end, self.events()
            await self.loop.sleep(1_000_000)  # between two checks


@pytest.fixture
def supervision(tmp_path: Path) -> Iterator[Supervision]:
    supervision = Supervision(tmp_path)
    yield supervision
    supervision.processes.end()
    supervision.waiter.close()
    assert supervision.processes.pids == {}


def test_required_processes_run_and_others_end(supervision: Supervision) -> None:
    supervision.kind.desired = {"a": 1, "b": 1}
    supervision.processes.reconcile()
    pids = dict(supervision.processes.pids)
    assert sorted(pids) == ["a", "b"]
    supervision.processes.reconcile()
    assert supervision.processes.pids == pids
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    assert supervision.processes.pids == {"a": pids["a"]}
    with pytest.raises(ProcessLookupError):
        os.kill(pids["b"], 0)
    assert supervision.events() == []


def test_a_process_with_another_specification_is_replaced(supervision: Supervision) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    before = supervision.processes.pids["a"]
    supervision.kind.desired = {"a": 2}
    supervision.processes.reconcile()
    assert supervision.processes.pids["a"] != before


def test_a_dead_process_is_restarted_at_once_and_the_gap_is_recorded(supervision: Supervision, tmp_path: Path) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    os.kill(supervision.processes.pids["a"], signal.SIGKILL)
    supervision.run_until("sleeper restarted")
    died, restarted = event_log.read(tmp_path)
    assert (died["event"], died["name"], died["code"]) == ("sleeper died", "a", -signal.SIGKILL)
    assert (restarted["name"], restarted["pid"], restarted["more"]) == ("a", supervision.processes.pids["a"], 1)
    assert restarted["gap"][0] <= restarted["gap"][1]


def test_a_process_that_dies_repeatedly_is_restarted_after_a_second(supervision: Supervision) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    start_time = supervision.loop.now()
    for death in range(1, 5):
        os.kill(supervision.processes.pids["a"], signal.SIGKILL)
        supervision.run_until("sleeper restarted", death)
    assert supervision.loop.now() - start_time >= SECOND


def test_a_failed_restart_is_retried(supervision: Supervision) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    supervision.kind.failing_starts = 1
    os.kill(supervision.processes.pids["a"], signal.SIGKILL)
    supervision.run_until("sleeper restarted")
    assert supervision.events() == ["sleeper died", "sleeper not restarted", "sleeper restarted"]


def test_a_dead_process_is_restarted_if_its_death_cannot_be_recorded(supervision: Supervision, tmp_path: Path) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    log = tmp_path / event_log.FILE
    log.symlink_to("/dev/full")
    os.kill(supervision.processes.pids["a"], signal.SIGKILL)
    supervision.loop.complete(supervision.wait_for(lambda: supervision.kind.started == 2))
    log.unlink()
    os.kill(supervision.processes.pids["a"], signal.SIGKILL)
    supervision.run_until("sleeper restarted")
    assert supervision.events() == ["events omitted", "sleeper died", "sleeper restarted"]


def test_a_dead_process_is_restarted_when_the_requirements_can_be_read_again(supervision: Supervision) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    supervision.kind.failing_reads = 2  # of the counts at the death, and of the requirements
    os.kill(supervision.processes.pids["a"], signal.SIGKILL)
    supervision.run_until("sleeper restarted")
    assert supervision.events() == ["sleeper died", "sleeper not restarted", "sleeper restarted"]


def test_a_process_that_is_no_longer_required_is_not_restarted(supervision: Supervision) -> None:
    supervision.kind.desired = {"a": 1}
    supervision.processes.reconcile()
    supervision.kind.desired = {}
    os.kill(supervision.processes.pids["a"], signal.SIGKILL)
    supervision.run_until("sleeper died")
    assert supervision.processes.pids == {}
    assert supervision.events() == ["sleeper died"]


def test_processes_of_a_previous_supervisor_are_adopted(supervision: Supervision) -> None:
    adopted, replaced = (daemons.start(name, (), lambda: None, signal.pause) for name in ("adopted", "replaced"))
    supervision.kind.before = {
        "a": FormerProcess(adopted, 1),
        "b": FormerProcess(replaced, 1),
        "c": FormerProcess(None, 1),
    }
    supervision.kind.desired = {"a": 1, "b": 2, "c": 1}
    supervision.processes.adopt()
    assert supervision.events() == ["sleeper died"], "c died while there was no supervisor"
    supervision.processes.reconcile()
    assert supervision.processes.pids["a"] == adopted.pid
    assert not replaced.is_alive, "its specification had changed"
    assert supervision.kind.cleaned_up == ["b"]
    assert supervision.events() == ["sleeper died", "sleeper restarted"]
    os.kill(adopted.pid, signal.SIGKILL)
    supervision.run_until("sleeper restarted", 2)


def test_unneeded_processes_of_a_previous_supervisor_are_ended(supervision: Supervision) -> None:
    running_daemon = daemons.start("a", (), lambda: None, signal.pause)
    supervision.kind.before = {"a": FormerProcess(running_daemon, 1)}
    supervision.processes.adopt()
    supervision.processes.reconcile()
    assert not running_daemon.is_alive
    assert supervision.processes.pids == {}
    assert supervision.events() == []
