"""A run of host programs on NICs of a cluster's nodes, as whoever starts it sees it::

with Run(orders, logs, told) as run:
    outcome = run.wait(10)
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from testbed.errors import TestbedError
from testbed.kernel.children import in_child
from testbed.kernel.processes import wait_for_end
from testbed.runtime import events
from testbed.runtime.nodes import warm
from testbed.runtime.nodes.channel import Channel
from testbed.runtime.nodes.model_faults import ModelFault
from testbed.runtime.nodes.node import Report
from testbed.runtime.nodes.places import Orders
from testbed.runtime.nodes.progress import Progress

PATIENCE: Final = 30.0
"""Seconds for node processes to begin and, once told to, to end."""

_LEAD: Final = 5_000_000
"""Nanoseconds that node processes have to hear of a dilated run's beginning."""

_ANSWER: Final = 1.0  # s in which a node says what it waits for
_SHOWN: Final = 2_000  # characters of a log's end
_LOOKS: Final = 10  # at progress, in the time for which there may be none


class ProgramError(TestbedError):
    """A node's program, or its NIC's firmware, has raised something: its traceback."""


class NodeDiedError(TestbedError):
    """A node process has ended though nobody asked it to."""


class StuckError(TestbedError):
    """A run goes on for too long, or gets no further. waiting: what every node waits for."""

    def __init__(self, what: str, waiting: Mapping[str, list[str]]) -> None:
        self.waiting = waiting
        lines = [f"  {name}: {sentence}" for name, sentences in waiting.items() for sentence in sentences]
        super().__init__("\n".join([f"{what}; the nodes say:", *lines]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """results: what the programs returned. reports: what their NICs did. By node."""

    results: Mapping[str, Any]
    reports: Mapping[str, Report]


class Run:
    """Node processes, from "go" on. Ends with its block, whatever they do then."""

    def __init__(self, orders: Orders, logs: Path, told: Path) -> None:
        """logs: a directory for the nodes' output. told: the cluster's, for events. Returns when every program has been
        told to go; raises NodeDiedError, ProgramError, KernelError."""
        self._orders = orders
        self._logs = logs
        self._told = told
        self._pids: dict[str, int] = {}
        self._lines: dict[str, Channel] = {}
        self._names: dict[int, str] = {}
        self._heard: dict[str, dict[str, object]] = {place.name: {} for place in orders.places}
        self._ended: dict[str, int] = {}
        self._away: dict[str, bool] = {}  # who was crashed -> whether it will be started again
        self._paused: set[str] = set()
        self._due: list[tuple[int, int, Callable[[], object]]] = []  # a heap: when, in which order, what
        self._orderly = itertools.count().__next__
        self._ready = select.poll()
        self._origin = 0  # where a dilated run's clock shows 0
        self._progress = Progress(len(orders.places))
        self._parent: tuple[int, int] | None = None  # of all node processes: its number, and what tells of its end
        self._left_undone = False  # it has ended, and may have left the NICs as they were in the run
        ends: dict[str, Channel] = {}
        self._warm, end = Channel.pair()
        try:
            for place in orders.places:
                self._lines[place.name], ends[place.name] = Channel.pair()
            pid = warm.start(orders, end, ends, logs, told, self._progress).pid
            self._parent = pid, os.pidfd_open(pid)
        except BaseException:
            self.close()
            self._put_back()
            raise
        finally:
            for line in (end, *ends.values()):
                line.close()
        self._ready.register(self._warm.fileno(), select.POLLIN)
        for name, line in self._lines.items():
            self._names[line.fileno()] = name
            self._ready.register(line.fileno(), select.POLLIN)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        self.begun: Final = time.monotonic_ns()
        """When every program had been told to go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> Mapping[str, int]:
        """The node processes, by node."""
        return self._pids

    def log(self, node: str) -> str:
        """What the node's program has written until now."""
        return (self._logs / f"{node}.log").read_text(errors="replace")

    def kill(self, node: str) -> None:
        """Kill a node process (SIGKILL), as a fault; `wait` then needs to be told."""
        self._warm.tell("kill", node)

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Have something done at that time, in monotonic nanoseconds: `wait` does it in between, and what it raises ends the
        wait."""
        heapq.heappush(self._due, (when, self._orderly(), act))

    def has_ended(self, node: str) -> bool:
        """Whether a node process has, or its program."""
        return node in self._ended or "done" in self._heard[node]

    def crash(self, node: str, *, returns: bool = False) -> None:
        """Kill a node process that has not ended, and wait for its end. returns: `restart` will be called, and `wait` waits
        for that; else its program is not waited for any more."""
        self._away[node] = returns
        self._paused.discard(node)
        self.kill(node)
        deadline = time.monotonic() + PATIENCE
        while node not in self._ended:
            if not self._hear(deadline):
                raise StuckError(f"{node}: its process does not end within {PATIENCE:g} s", {})

    def restart(self, node: str) -> None:
        """Start a node process that `crash` has ended: its NIC with another incarnation, its program anew. Returns when
        the program has been told to go; raises ProgramError, NodeDiedError, StuckError."""
        line, end = Channel.pair()
        self._lines[node].close()
        self._lines[node] = line
        self._names[line.fileno()] = node
        self._ready.register(line.fileno(), select.POLLIN)
        self._heard[node] = {}
        del self._ended[node], self._away[node]
        self._warm.tell("restart", node, end)
        end.close()
        deadline = time.monotonic() + PATIENCE
        while not self._has_ended(node, "ready", ()):
            if not self._hear(deadline):
                raise StuckError(f"{node}: its process has not begun again within {PATIENCE:g} s", self.waiting())
        line.tell("go", self._origin)

    def pause(self, node: str) -> None:
        """Stop a node process until `resume`, or until all programs have ended."""
        self._paused.add(node)
        self._warm.tell("pause", node)

    def resume(self, node: str) -> None:
        self._paused.discard(node)
        self._warm.tell("resume", node)

    @property
    def origin(self) -> int:
        """When the clock of a dilated run shows 0, monotonic nanoseconds."""
        return self._origin

    def bend(self, node: str, fault: ModelFault) -> None:
        """Have something done to the model of a node where time is dilated."""
        with contextlib.suppress(ConnectionError):  # it has just ended; `wait` says how
            self._lines[node].tell("model", fault)

    def wait(self, seconds: float, without: Collection[str] = (), *, patience: float | None = None) -> Outcome:
        """Wait until every program has ended, for so many seconds in all, and end the run. without: nodes whose death does
        not matter. patience: seconds for which there may be no progress anywhere (see `progress`): longer than any program
        computes or sleeps, and than any one transfer takes. None: all of the run.

        Raises ProgramError and NodeDiedError as soon as it happens; StuckError when the time or the patience is over.
        """
        begun = moved = looked = time.monotonic()
        between = seconds if patience is None else patience / _LOOKS
        left = len(self._heard)
        while waited := sum(not self._has_ended(name, "done", without) for name in self._heard):
            due = self._due[0][0] / 1e9 if self._due else begun + seconds
            self._hear(min(begun + seconds, looked + between, due))
            self._act()
            now = time.monotonic()
            if patience is not None and now >= looked + between:
                if self._progress.look() or waited < left:
                    moved = now
                elif now >= moved + patience:
                    raise StuckError(
                        f"for {now - moved:.3g} s no program and no transfer has ended, anywhere", self.waiting()
                    )
                looked, left = now, waited
            if now >= begun + seconds:
                raise StuckError(f"programs have not ended within {seconds:g} s", self.waiting())
        for name in sorted(self._paused):
            self.resume(name)
        for name, line in self._lines.items():
            if name not in self._ended:
                with contextlib.suppress(ConnectionError):
                    line.tell("stop")
        self._until("report", without)
        reports = {name: report for name, report in self._said("report").items() if isinstance(report, Report)}
        return Outcome(self._said("done"), reports)

    def _act(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= time.monotonic_ns():
            heapq.heappop(self._due)[2]()

    def _said(self, word: str) -> dict[str, object]:
        """By node, what came with this word."""
        return {name: heard[word] for name, heard in self._heard.items() if word in heard}

    def waiting(self) -> dict[str, list[str]]:
        """What every node waits for, by itself; where it cannot say, what the kernel says of it."""
        for heard in self._heard.values():
            heard.pop("waiting", None)
        self._warm.tell("ask")
        deadline = time.monotonic() + _ANSWER
        while any("waiting" not in heard and name not in self._ended for name, heard in self._heard.items()):
            if not self._hear(deadline):
                break
        found: dict[str, list[str]] = {}
        for name, heard in self._heard.items():
            said = heard.get("waiting")
            if name in self._ended:
                found[name] = [_how(self._ended[name])]
            else:
                found[name] = [str(sentence) for sentence in said] if isinstance(said, list) else [self._mute(name)]
        return found

    def close(self) -> None:
        """Kill what still runs, wait for its end, and leave the nodes' NICs as they were."""
        self._warm.close()
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._progress.close()
        self._bury_parent()
        if self._left_undone:
            self._left_undone = False
            self._put_back()

    def _bury_parent(self) -> None:
        """Wait for the end of the parent of all node processes, and record it where it was a death."""
        if self._parent is None:
            return
        pid, handle = self._parent
        self._parent = None
        if not wait_for_end(handle, PATIENCE):  # it is stopped, or was never let go on
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            wait_for_end(handle)
        os.close(handle)
        self._left_undone = True
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for all children of this process
            _, status = os.waitpid(pid, 0)
            self._left_undone = bool(status)
            if status:
                code = os.waitstatus_to_exitcode(status)
                events.record(self._told, "node parent died", nodes=[*self._heard], pid=pid, code=code)

    def _put_back(self) -> None:
        """In the place of a parent that could not."""
        in_child(partial(warm.put_back, self._orders, self._told))

    def _begin(self) -> None:
        self._until("ready", ())
        self._origin = time.monotonic_ns() + _LEAD
        for name, heard in self._heard.items():
            pid = heard["ready"]
            assert isinstance(pid, int)
            self._pids[name] = pid
        for line in self._lines.values():
            with contextlib.suppress(ConnectionError):  # `wait` says of whom
                line.tell("go", self._origin)

    def _until(self, word: str, without: Collection[str]) -> None:
        """Wait until every node has said this."""
        deadline = time.monotonic() + PATIENCE
        while not all(self._has_ended(name, word, without) for name in self._heard):
            if not self._hear(deadline):
                raise StuckError(f"node processes have not said {word!r} within {PATIENCE:g} s", self.waiting())

    def _has_ended(self, name: str, word: str, without: Collection[str]) -> bool:
        """Whether a node has said this, or need not any more."""
        heard = self._heard[name]
        if word in heard:
            return True
        if name in without and (name in self._ended or "failed" in heard):
            return True
        if name in self._away and name in self._ended:
            return not self._away[name]
        if "failed" in heard:
            raise ProgramError(f"{name}: {heard['failed']}")
        if name in self._ended:
            said = self._end_of_log(name)
            raise NodeDiedError(f"{name}: its process {_how(self._ended[name])}" + (f":\n{said}" if said else ""))
        return False

    def _hear(self, deadline: float) -> bool:
        """Take in what is said, at the latest until then; whether anything was."""
        ready = [descriptor for descriptor, _ in self._ready.poll(max(0.0, deadline - time.monotonic()) * 1000)]
        for descriptor in ready:
            if descriptor in self._names:
                self._listen(self._names[descriptor])
            elif descriptor != self._warm.fileno():  # a node's, whose last words were heard with the news of its end
                continue
            elif (said := self._warm.hear()) is not None:
                name, number = said[1] if isinstance(said[1], tuple) else ("", 0)
                if said[0] == "forked":
                    self._pids[name] = number
                    continue
                self._listen_to_the_end(name)
                self._ended[name] = number
            else:
                self._bury_parent()
                raise NodeDiedError("the parent of all node processes has died, and they with it")
        return bool(ready)

    def _listen(self, name: str) -> None:
        line = self._lines[name]
        said = line.hear()
        if said is not None:
            self._heard[name][said[0]] = said[1]
        else:
            self._forget(line)

    def _listen_to_the_end(self, name: str) -> None:
        """Hear what a process said before it ended. Its end of the line may outlive it, in a process that it has forked."""
        line = self._lines.get(name)
        while line is not None and line.fileno() in self._names:
            if line.has_word():
                self._listen(name)
            else:
                self._forget(line)

    def _forget(self, line: Channel) -> None:
        self._ready.unregister(line.fileno())
        del self._names[line.fileno()]

    def _mute(self, name: str) -> str:
        """Of a process that does not answer: it is in the kernel, or in a library that lets no signal through."""
        if name not in self._pids:
            return "its process has not been started"
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self._pids[name]}/status").read_text().splitlines():
                if line.startswith("State:"):
                    return f"it does not answer; its process's state is {line.removeprefix('State:').strip()}"
        return "it does not answer"

    def _end_of_log(self, name: str) -> str:
        with contextlib.suppress(OSError), (self._logs / f"{name}.log").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN))  # it may be as large as the disk
            return file.read(_SHOWN).decode(errors="replace").strip()
        return ""


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
