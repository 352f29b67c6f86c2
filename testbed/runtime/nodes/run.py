"""A run of host programs on NICs of a cluster's nodes, as whoever starts it sees it::

with Run(orders, logs, told) as run:
    outcome = run.wait(10)
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.errors import TestbedError
from testbed.kernel import processes
from testbed.runtime.nodes import warm
from testbed.runtime.nodes.channel import Channel
from testbed.runtime.nodes.node import Report
from testbed.runtime.nodes.places import Orders

PATIENCE: Final = 30.0
"""Seconds for node processes to begin and, once told to, to end."""

_ANSWER: Final = 1.0  # s in which a node says what it waits for
_SHOWN: Final = 2_000  # characters of a log's end


class ProgramError(TestbedError):
    """A node's program, or its NIC's firmware, has raised something: its traceback."""


class NodeDiedError(TestbedError):
    """A node process has ended though nobody asked it to."""


class StuckError(TestbedError):
    """For too long no program has ended. waiting: what every node waits for."""

    def __init__(self, seconds: float, waiting: Mapping[str, list[str]]) -> None:
        self.waiting = waiting
        lines = [f"  {name}: {sentence}" for name, sentences in waiting.items() for sentence in sentences]
        super().__init__("\n".join([f"no program has ended for {seconds:g} s; the nodes say:", *lines]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """results: what the programs returned. reports: what their NICs did. By node."""

    results: Mapping[str, Any]
    reports: Mapping[str, Report]

    @property
    def invalid(self) -> str:
        """Why the run says nothing of the protocol: frames lost inside the emulator; empty when there are none."""
        lost = {name: report.lost for name, report in self.reports.items() if report.lost}
        return "; ".join(f"{name} lost {count} frames inside the emulator" for name, count in lost.items())


class Run:
    """Node processes, from "go" on. Ends with its block, whatever they do then."""

    def __init__(self, orders: Orders, logs: Path, told: Path) -> None:
        """logs: a directory for the nodes' output. told: the cluster's, for events. Returns when every program has been
        told to go; raises NodeDiedError, ProgramError, KernelError."""
        self._logs = logs
        self._pids: dict[str, int] = {}
        self._lines: dict[str, Channel] = {}
        self._names: dict[int, str] = {}
        self._heard: dict[str, dict[str, object]] = {place.name: {} for place in orders.places}
        self._ended: dict[str, int] = {}
        self._ready = select.poll()
        ends: dict[str, Channel] = {}
        self._warm, end = Channel.pair()
        try:
            for place in orders.places:
                self._lines[place.name], ends[place.name] = Channel.pair()
            self._process = warm.start(orders, end, ends, logs, told)
        except BaseException:
            for line in (self._warm, *self._lines.values()):
                line.close()
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

    def __enter__(self) -> Run:
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

    def wait(self, seconds: float, without: Collection[str] = ()) -> Outcome:
        """Wait until every program has ended, and end the run. without: nodes whose death does not matter.

        Raises ProgramError and NodeDiedError as soon as it happens; StuckError when no program has ended for `seconds`.
        """
        deadline, left = time.monotonic() + seconds, len(self._heard) + 1
        while waited := [name for name in self._heard if not self._has_ended(name, "done", without)]:
            if len(waited) < left:  # progress
                left = len(waited)
                deadline = time.monotonic() + seconds
            if not self._hear(deadline):
                raise StuckError(seconds, self.waiting())
        for name, line in self._lines.items():
            if name not in self._ended:
                with contextlib.suppress(ConnectionError):
                    line.tell("stop")
        self._until("report", without)
        reports = {name: report for name, report in self._said("report").items() if isinstance(report, Report)}
        return Outcome(self._said("done"), reports)

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
        """Kill what still runs, and wait for its end."""
        self._warm.close()
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        processes.wait_until_gone(self._process)

    def _begin(self) -> None:
        self._until("ready", ())
        for name, heard in self._heard.items():
            pid = heard["ready"]
            assert isinstance(pid, int)
            self._pids[name] = pid
        for line in self._lines.values():
            with contextlib.suppress(ConnectionError):  # `wait` says of whom
                line.tell("go")

    def _until(self, word: str, without: Collection[str]) -> None:
        """Wait until every node has said this."""
        deadline = time.monotonic() + PATIENCE
        while not all(self._has_ended(name, word, without) for name in self._heard):
            if not self._hear(deadline):
                raise StuckError(PATIENCE, self.waiting())

    def _has_ended(self, name: str, word: str, without: Collection[str]) -> bool:
        """Whether a node has said this, or need not any more."""
        heard = self._heard[name]
        if word in heard:
            return True
        if name in without and (name in self._ended or "failed" in heard):
            return True
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
            elif (said := self._warm.hear()) is not None:
                name, status = said[1] if isinstance(said[1], tuple) else ("", 0)
                while name in self._lines and self._lines[name].fileno() in self._names:
                    self._listen(name)  # what it said before it ended
                self._ended[name] = status
            else:
                raise NodeDiedError("the parent of all node processes has died, and they with it")
        return bool(ready)

    def _listen(self, name: str) -> None:
        line = self._lines[name]
        said = line.hear()
        if said is not None:
            self._heard[name][said[0]] = said[1]
        else:
            self._ready.unregister(line.fileno())
            del self._names[line.fileno()]

    def _mute(self, name: str) -> str:
        """Of a process that does not answer: it is in the kernel, or in a library that lets no signal through."""
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self._pids[name]}/stat").read_text().rpartition(")")[2].split()[0]
            return f"it does not answer; its process's state is {state}"
        return "it does not answer"

    def _end_of_log(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return self.log(name)[-_SHOWN:].strip()
        return ""


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
