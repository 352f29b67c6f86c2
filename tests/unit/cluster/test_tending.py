"""What a steward tends: what is wanted runs, what is not ends, what dies comes back, and what dies at once waits a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from testbed.cluster.tending import Tended
from testbed.engine.loop import Loop
from testbed.errors import TestbedError
from testbed.kernel import daemons, processes
from testbed.kernel.waiting import Waiter
from testbed.runtime import events

SECOND = 1_000_000_000
PATIENCE = 10 * SECOND


class Sleepers:
    """Processes that do nothing."""

    word = "sleeper"

    def __init__(self) -> None:
        self.wish: dict[str, object] = {}
        self.refuses = 0
        self.started = 0

    def wanted(self) -> Mapping[str, object]:
        return self.wish

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
        self.tended = Tended(self.loop, directory, self.kind)
        self._directory = directory

    def told(self) -> list[str]:
        return [str(one["event"]) for one in events.read(self._directory)]

    def until(self, event: str, count: int = 1) -> None:
        """The loop runs until that has been told so often."""

        async def wait() -> None:
            end = self.loop.now() + PATIENCE
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
    tending.kind.wish = {"a": 1, "b": 1}
    tending.tended.look()
    pids = dict(tending.tended.pids)
    assert sorted(pids) == ["a", "b"]
    tending.tended.look()
    assert tending.tended.pids == pids
    tending.kind.wish = {"a": 1}
    tending.tended.look()
    assert tending.tended.pids == {"a": pids["a"]}
    with pytest.raises(ProcessLookupError):
        os.kill(pids["b"], 0)
    assert tending.told() == []


def test_what_shall_be_something_else_is_another_process(tending: Tending) -> None:
    tending.kind.wish = {"a": 1}
    tending.tended.look()
    before = tending.tended.pids["a"]
    tending.kind.wish = {"a": 2}
    tending.tended.look()
    assert tending.tended.pids["a"] != before


def test_what_dies_is_started_again_at_once_and_the_gap_is_told(tending: Tending, tmp_path: Path) -> None:
    tending.kind.wish = {"a": 1}
    tending.tended.look()
    os.kill(tending.tended.pids["a"], signal.SIGKILL)
    tending.until("sleeper restarted")
    died, back = events.read(tmp_path)
    assert (died["event"], died["name"]) == ("sleeper died", "a")
    assert (back["name"], back["pid"], back["more"]) == ("a", tending.tended.pids["a"], 1)
    assert back["gap"][0] <= back["gap"][1]


def test_what_dies_at_once_again_and_again_waits_a_second(tending: Tending) -> None:
    tending.kind.wish = {"a": 1}
    tending.tended.look()
    begun = tending.loop.now()
    for death in range(1, 5):
        os.kill(tending.tended.pids["a"], signal.SIGKILL)
        tending.until("sleeper restarted", death)
    assert tending.loop.now() - begun >= SECOND


def test_what_cannot_be_started_again_is_tried_again(tending: Tending) -> None:
    tending.kind.wish = {"a": 1}
    tending.tended.look()
    tending.kind.refuses = 1
    os.kill(tending.tended.pids["a"], signal.SIGKILL)
    tending.until("sleeper restarted")
    assert tending.told() == ["sleeper died", "sleeper not restarted", "sleeper restarted"]


def test_what_is_wanted_no_more_when_it_dies_stays_away(tending: Tending) -> None:
    tending.kind.wish = {"a": 1}
    tending.tended.look()
    tending.kind.wish = {}
    os.kill(tending.tended.pids["a"], signal.SIGKILL)
    tending.until("sleeper died")
    assert tending.tended.pids == {}
    assert tending.told() == ["sleeper died"]
