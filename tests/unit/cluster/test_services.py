"""Services of a supervisor: the wanted run, others end, one that dies comes back, and one that dies at once waits a
while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
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
    """Processes that do nothing."""

    word = "sleeper"

    def __init__(self) -> None:
        self.desired: dict[str, object] = {}
        self.refuses = 0
        self.started = 0
        self.before: dict[str, FormerProcess] = {}
        self.forgotten: list[str] = []

    def wanted(self) -> Mapping[str, object]:
        return self.desired

    def known(self) -> Mapping[str, FormerProcess]:
        return self.before

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    def start(self, key: str) -> processes.Identity:
        if self.refuses:
            self.refuses -= 1
            raise TestbedError("not now")
        self.started += 1
        return daemons.start(key, (), lambda: None, signal.pause)

    def named(self, key: str) -> Mapping[str, object]:
        return {"name": key}

    def seen(self, key: str) -> Mapping[str, int]:  # noqa: ARG002
        return {"started": self.started}

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:
        return {"more": back["started"] - died["started"]}


class Tending:
    def __init__(self, directory: Path) -> None:
        self.waiter = Waiter()
        self.loop = Loop(self.waiter)
        self.kind = Sleepers()
        self.tended = SupervisedProcesses(self.loop, directory, self.kind)
        self._directory = directory

    def told(self) -> list[str]:
        return [str(one["event"]) for one in event_log.read(self._directory)]

    def until(self, event: str, count: int = 1) -> None:
        """Run the loop until `event` has been reported `count` times."""

        async def wait() -> None:
            end = self.loop.now() + TIMEOUT
            while self.told().count(event) < count:
                assert self.loop.now() < end, f"{event}: {self.told()}"
                await self.loop.sleep(1_000_000)  # between two looks

        self.loop.complete(wait())


@pytest.fixture
def tending(tmp_path: Path) -> Iterator[Tending]:
    found = Tending(tmp_path)
    yield found
    found.tended.end()
    found.waiter.close()
    assert found.tended.pids == {}


def test_what_is_wanted_runs_and_what_is_not_ends(tending: Tending) -> None:
    tending.kind.desired = {"a": 1, "b": 1}
    tending.tended.reconcile()
    pids = dict(tending.tended.pids)
    assert sorted(pids) == ["a", "b"]
    tending.tended.reconcile()
    assert tending.tended.pids == pids
    tending.kind.desired = {"a": 1}
    tending.tended.reconcile()
    assert tending.tended.pids == {"a": pids["a"]}
    with pytest.raises(ProcessLookupError):
        os.kill(pids["b"], 0)
    assert tending.told() == []


def test_what_shall_be_something_else_is_another_process(tending: Tending) -> None:
    tending.kind.desired = {"a": 1}
    tending.tended.reconcile()
    before = tending.tended.pids["a"]
    tending.kind.desired = {"a": 2}
    tending.tended.reconcile()
    assert tending.tended.pids["a"] != before


def test_what_dies_is_started_again_at_once_and_the_gap_is_told(tending: Tending, tmp_path: Path) -> None:
    tending.kind.desired = {"a": 1}
    tending.tended.reconcile()
    os.kill(tending.tended.pids["a"], signal.SIGKILL)
    tending.until("sleeper restarted")
    died, back = event_log.read(tmp_path)
    assert (died["event"], died["name"], died["code"]) == ("sleeper died", "a", -signal.SIGKILL)
    assert (back["name"], back["pid"], back["more"]) == ("a", tending.tended.pids["a"], 1)
    assert back["gap"][0] <= back["gap"][1]


def test_what_dies_at_once_again_and_again_waits_a_second(tending: Tending) -> None:
    tending.kind.desired = {"a": 1}
    tending.tended.reconcile()
    begun = tending.loop.now()
    for death in range(1, 5):
        os.kill(tending.tended.pids["a"], signal.SIGKILL)
        tending.until("sleeper restarted", death)
    assert tending.loop.now() - begun >= SECOND


def test_what_cannot_be_started_again_is_tried_again(tending: Tending) -> None:
    tending.kind.desired = {"a": 1}
    tending.tended.reconcile()
    tending.kind.refuses = 1
    os.kill(tending.tended.pids["a"], signal.SIGKILL)
    tending.until("sleeper restarted")
    assert tending.told() == ["sleeper died", "sleeper not restarted", "sleeper restarted"]


def test_what_is_wanted_no_more_when_it_dies_stays_away(tending: Tending) -> None:
    tending.kind.desired = {"a": 1}
    tending.tended.reconcile()
    tending.kind.desired = {}
    os.kill(tending.tended.pids["a"], signal.SIGKILL)
    tending.until("sleeper died")
    assert tending.tended.pids == {}
    assert tending.told() == ["sleeper died"]


def test_what_another_supervisor_has_started_is_gone_on_with_and_watched(tending: Tending) -> None:
    kept, other = (daemons.start(name, (), lambda: None, signal.pause) for name in ("kept", "other"))
    tending.kind.before = {"a": FormerProcess(kept, 1), "b": FormerProcess(other, 1), "c": FormerProcess(None, 1)}
    tending.kind.desired = {"a": 1, "b": 2, "c": 1}
    tending.tended.adopt()
    assert tending.told() == ["sleeper died"], "c, while nobody looked"
    tending.tended.reconcile()
    assert tending.tended.pids["a"] == kept.pid
    assert not other.is_alive, "it was to be something else"
    assert tending.kind.forgotten == ["b"]
    assert tending.told() == ["sleeper died", "sleeper restarted"]
    os.kill(kept.pid, signal.SIGKILL)
    tending.until("sleeper restarted", 2)


def test_what_another_supervisor_has_started_and_nobody_wants_is_ended(tending: Tending) -> None:
    known = daemons.start("a", (), lambda: None, signal.pause)
    tending.kind.before = {"a": FormerProcess(known, 1)}
    tending.tended.adopt()
    tending.tended.reconcile()
    assert not known.is_alive
    assert tending.tended.pids == {}
    assert tending.told() == []
