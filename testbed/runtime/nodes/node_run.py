"""Run of host programs on NICs of a cluster's nodes, from the side of the process that starts it::

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from testbed.errors import FirmwareError, TestbedError
from testbed.kernel import processes
from testbed.kernel.children import in_child
from testbed.kernel.processes import wait_for_end
from testbed.runtime import event_log
from testbed.runtime.nodes import warm
from testbed.runtime.nodes.control_channel import Channel
from testbed.runtime.nodes.node_process import ByRank, Report
from testbed.runtime.nodes.places import ModelFault, Orders
from testbed.runtime.nodes.run_progress import Progress

TIMEOUT: Final = 30.0
"""Seconds for node processes to start, and to end once asked to."""

_LEAD: Final = 5_000_000
"""Nanoseconds from "go" to time 0 of a dilated run."""

_ANSWER: Final = 1.0  # s for nodes to report what they wait for
_MAX_SHOWN: Final = 2_000  # bytes of a log's end in an error message
_CHECKS: Final = 10  # checks of progress within a patience


class ProgramError(TestbedError):
    """A node's program has raised an error: its traceback. when: nanoseconds of the histories' clock until which operations
    under way then could continue; -1: they could not."""

    when = -1


class NodeDiedError(TestbedError):
    """Node processes have ended unexpectedly. nodes: whose."""

    def __init__(self, what: str, nodes: Iterable[str]) -> None:
        self.nodes = tuple(nodes)
        super().__init__(what)


class ClusterEndedError(TestbedError):
    """The process that held the nodes' namespaces has died, and the cluster with it."""


class StuckError(TestbedError):
    """A run takes too long, or makes no progress. waiting: sentences by node about what it waits for."""

    def __init__(self, what: str, waiting: Mapping[str, list[str]], printed: Sequence[str] = ()) -> None:
        """printed: a heading and lines that programs have printed."""
        self.waiting = waiting
        lines = [f"  {name}: {sentence}" for name, sentences in waiting.items() for sentence in sentences]
        super().__init__("\n".join([f"{what}; the nodes say:", *lines, *printed]))


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run. results: of the programs, by rank. reports: of their NICs, by node."""

    results: Mapping[str, Any]
    reports: Mapping[str, Report]


def _ignore() -> None:
    pass


class Run:
    """A run of node processes. The end of its ``with`` block ends them."""

    def __init__(
        self, orders: Orders, logs: Path, directory: Path, on_ready: Callable[[Self], object] | None = None
    ) -> None:
        """Start the node processes; return when every program has been started.

        logs: a directory for the nodes' output. directory: the cluster's directory, for events. on_ready: called when all
        NICs are up and no program has begun. Raises NodeDiedError, ProgramError, KernelError.
        """
        self._orders = orders
        self._logs = logs
        self._directory = directory
        self._pids: dict[str, int] = {}
        self._channels: dict[str, Channel] = {}
        self._names: dict[int, str] = {}
        self._messages: dict[str, dict[str, object]] = {placement.name: {} for placement in orders.places}
        self._ended: dict[str, int] = {}
        self._away: dict[str, bool] = {}  # crashed node -> whether it will be restarted
        self._paused: set[str] = set()
        self._due: list[tuple[int, int, Callable[[], object]]] = []  # a heap: when, sequence number, action
        self._next_sequence = itertools.count().__next__
        self._ready = select.poll()
        self._begun = 0
        self._progress = Progress(len(orders.places))
        self._parent: tuple[int, int] | None = None  # pid and pidfd of the parent of all node processes
        self._ends_with: tuple[int, str] | None = None
        self.before_stop: Callable[[], object] = _ignore
        """Called by `wait` when every program has ended, and the NICs still serve their peers."""
        self._needs_restore = False  # the parent has ended, and may have left the NICs as they were in the run
        ends: dict[str, Channel] = {}
        self._warm, end = Channel.pair()
        try:
            for placement in orders.places:
                self._channels[placement.name], ends[placement.name] = Channel.pair()
            pid = warm.start(orders, end, ends, logs, directory, self._progress).pid
            self._parent = pid, os.pidfd_open(pid)
        except BaseException:
            self.close()
            self._restore_offloads()
            raise
        finally:
            for channel in (end, *ends.values()):
                channel.close()
        self._ready.register(self._warm.fileno(), select.POLLIN)
        for name, channel in self._channels.items():
            self._names[channel.fileno()] = name
            self._ready.register(channel.fileno(), select.POLLIN)
        try:
            self._begin(on_ready)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def start_time(self) -> int:
        """When the programs begin, monotonic nanoseconds: in a dilated run the time at which its clock shows 0. The
        present until they are started."""
        return self._begun or time.monotonic_ns()

    @property
    def pids(self) -> Mapping[str, int]:
        """Pids of the node processes, by node."""
        return self._pids

    def log(self, node: str) -> str:
        """Read the output of a node's program until now."""
        return (self._logs / f"{node}.log").read_text(errors="replace")

    def kill(self, node: str) -> None:
        """Kill a node process (SIGKILL), as a fault; name the node in `wait(without=...)` then."""
        self._warm.send("kill", node)

    def end_with(self, handle: int, reason: str) -> None:
        """Let `wait` raise ClusterEndedError, with this sentence, as soon as the process behind a pidfd has ended."""
        self._ends_with = handle, reason
        self._ready.register(handle, select.POLLIN)

    def ranks_on(self, node: str) -> list[str]:
        """Return the names of a node's ranks in this run."""
        return [placement.name for placement in self._orders.places if placement.on == node]

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Schedule a call, nanoseconds after the programs begin: `wait` makes it, and raises its error."""
        heapq.heappush(self._due, (when, self._next_sequence(), act))

    def has_ended(self, node: str) -> bool:
        """Whether a node's process or its program has ended."""
        return node in self._ended or "done" in self._messages[node]

    def crash(self, node: str, *, returns: bool = False) -> None:
        """Kill a node process that has not ended, and wait for its end. returns: `restart` will be called, which `wait`
        waits for; else its program is not waited for any more."""
        self._away[node] = returns
        self._paused.discard(node)
        self.kill(node)
        deadline = time.monotonic() + TIMEOUT
        while node not in self._ended:
            if not self._receive(deadline):
                raise StuckError(f"{node}: its process does not end within {TIMEOUT:g} s", {})
        self._report_departure(node)

    def _report_departure(self, node: str) -> None:
        """Tell the other programs that a node's ranks have crashed."""
        place = next(placement for placement in self._orders.places if placement.name == node)
        adapters = place.model.adapters if place.model is not None else (place.adapter,)
        for name, channel in self._channels.items():
            if name != node and name not in self._ended:
                for adapter in adapters:
                    with contextlib.suppress(ConnectionError):  # it has just ended
                        channel.send("departed", adapter.number)

    def restart(self, node: str) -> None:
        """Restart a node process that `crash` has ended: its NIC with another incarnation, its program from the beginning.
        Return when the program has been started; raises ProgramError, NodeDiedError, StuckError."""
        channel, end = Channel.pair()
        self._channels[node].close()
        self._channels[node] = channel
        self._names[channel.fileno()] = node
        self._ready.register(channel.fileno(), select.POLLIN)
        self._messages[node] = {}
        del self._ended[node], self._away[node]
        self._warm.send("restart", node, end)
        end.close()
        deadline = time.monotonic() + TIMEOUT
        while not self._has_ended(node, "ready", ()):
            if not self._receive(deadline):
                raise StuckError(f"{node}: its process has not begun again within {TIMEOUT:g} s", self.waiting())
        channel.send("go", (self.start_time, True))

    def pause(self, node: str) -> None:
        """Stop a node process until `resume`, or until all programs have ended."""
        self._paused.add(node)
        self._warm.send("pause", node)

    def resume(self, node: str) -> None:
        self._paused.discard(node)
        self._warm.send("resume", node)

    def apply_model_fault(self, node: str, fault: ModelFault) -> None:
        """Apply a fault to the model of a node in a dilated run."""
        with contextlib.suppress(ConnectionError):  # it has just ended; `wait` reports it
            self._channels[node].send("model", fault)

    def wait(self, seconds: float, without: Collection[str] = (), *, patience: float | None = None) -> RunOutcome:
        """Wait until every program has ended, and end the run. seconds: in all. without: nodes whose death does not matter.
        patience: seconds without any progress (see `run_progress`), longer than any program computes or sleeps and than any
        transfer takes; None: no limit.

        Raises ProgramError, FirmwareError and NodeDiedError at once; StuckError when the time or the patience is over.
        """
        started = moved = checked = time.monotonic()
        between = seconds if patience is None else patience / _CHECKS
        left = len(self._messages)
        while waited := sum(not self._has_ended(name, "done", without) for name in self._messages):
            due = (self._begun + self._due[0][0]) / 1e9 if self._due else started + seconds
            self._receive(min(started + seconds, checked + between, due))
            self._act()
            now = time.monotonic()
            if patience is not None and now >= checked + between:
                moved = max(moved, max(self._progress.last()) / 1e9) if waited == left else now
                if now >= moved + patience:
                    raise self._stuck(f"for {now - moved:.3g} s no program and no transfer has ended, anywhere")
                checked, left = now, waited
            if now >= started + seconds:
                raise self._stuck(f"programs have not ended within {seconds:g} s")
        for name in sorted(self._paused):
            self.resume(name)
        self.before_stop()
        for name, channel in self._channels.items():
            if name not in self._ended:
                with contextlib.suppress(ConnectionError):
                    channel.send("stop")
        self._until("report", without)
        reports = {name: report for name, report in self._data_of("report").items() if isinstance(report, Report)}
        results: dict[str, object] = {}
        for name, result in self._data_of("done").items():
            results |= result if isinstance(result, ByRank) else {name: result}
        return RunOutcome(results, reports)

    def _stuck(self, what: str) -> StuckError:
        waiting = self.waiting()
        ended = list(zip(self._progress.last(), self._messages, strict=True))
        last, node = max(ended, default=(0, ""))
        if last:
            ago, after = ((time.monotonic_ns() - last) / 1e9, (last - self.start_time) / 1e9)
            what += f"; the last transfer ended on {node} {ago:.3g} s ago, {max(0.0, after):.6f} s after the beginning"
        else:
            what += "; no transfer has ended since the beginning"
        return StuckError(what, waiting, printed(self._logs, self._messages))

    def _act(self) -> None:
        """Make the scheduled calls that are due."""
        while self._due and self._begun + self._due[0][0] <= time.monotonic_ns():
            heapq.heappop(self._due)[2]()

    def _data_of(self, word: str) -> dict[str, object]:
        """Return by node the data that came with this word."""
        return {name: messages[word] for name, messages in self._messages.items() if word in messages}

    def waiting(self) -> dict[str, list[str]]:
        """Ask every node what it waits for; return sentences by node, about its process's state where it does not answer."""
        for messages in self._messages.values():
            messages.pop("waiting", None)
        self._warm.send("ask")
        deadline = time.monotonic() + _ANSWER
        while any("waiting" not in messages and name not in self._ended for name, messages in self._messages.items()):
            if not self._receive(deadline):
                break
        sentences: dict[str, list[str]] = {}
        for name, messages in self._messages.items():
            answer = messages.get("waiting")
            if name in self._ended:
                sentences[name] = [_describe_status(self._ended[name])]
            else:
                sentences[name] = (
                    [str(sentence) for sentence in answer]
                    if isinstance(answer, list)
                    else [self._describe_silent(name)]
                )
        return sentences

    def close(self) -> None:
        """Kill the processes that still run, wait for their end, and restore the nodes' NICs."""
        self._warm.close()
        self._reap_parent()
        for channel in self._channels.values():  # not before: a node that loses its channel ends by itself
            channel.close()
        self._channels.clear()
        self._progress.close()
        if self._needs_restore:
            self._needs_restore = False
            self._restore_offloads()

    def _reap_parent(self) -> None:
        """Wait for the end of the parent of all node processes, and record it as an event if it was a death."""
        if self._parent is None:
            return
        pid, handle = self._parent
        self._parent = None
        if not wait_for_end(handle, TIMEOUT):  # it is stopped
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            wait_for_end(handle)
        os.close(handle)
        self._needs_restore = True
        with contextlib.suppress(ChildProcessError):  # other code has waited for all children of this process
            _, status = os.waitpid(pid, 0)
            self._needs_restore = bool(status)
            if status:
                code = os.waitstatus_to_exitcode(status)
                event_log.record(self._directory, "node parent died", nodes=[*self._messages], pid=pid, code=code)

    def _restore_offloads(self) -> None:
        """Restore the NICs' offloads in place of a parent that could not."""
        in_child(partial(warm.put_back, self._orders, self._directory))

    def _begin(self, on_ready: Callable[[Self], object] | None) -> None:
        self._until("ready", ())
        for name, messages in self._messages.items():
            pid = messages["ready"]
            assert isinstance(pid, int)
            self._pids[name] = pid
        if on_ready is not None:
            on_ready(self)
        started = time.monotonic_ns() + (_LEAD if self._orders.dilation is not None else 0)
        for channel in self._channels.values():
            with contextlib.suppress(ConnectionError):  # the node has ended; `wait` reports it
                channel.send("go", (started, bool(self._due)))  # only a scheduled call crashes nodes
        self._begun = started

    def _until(self, word: str, without: Collection[str]) -> None:
        """Wait until every node has sent this word. Raises StuckError."""
        deadline = time.monotonic() + TIMEOUT
        while not all(self._has_ended(name, word, without) for name in self._messages):
            if not self._receive(deadline):
                raise StuckError(f"node processes have not sent {word!r} within {TIMEOUT:g} s", self.waiting())

    def _has_ended(self, name: str, word: str, without: Collection[str]) -> bool:
        """Whether a node has sent this word, or need not any more. Raises the error of a failed or dead node."""
        messages = self._messages[name]
        if word in messages:
            return True
        if name in without and (name in self._ended or "failed" in messages):
            return True
        if name in self._away and name in self._ended:
            return not self._away[name]
        if "failed" in messages:
            failed = messages["failed"]
            if isinstance(failed, tuple):
                what, when = failed
                raise FirmwareError(what, when, name)
            self._look_for_deaths()
            raise ProgramError(f"{name}: {failed}")
        if name in self._ended:
            raise self._died(name)
        return False

    def _look_for_deaths(self) -> None:
        """Look for another node's death that is not reported yet, which may be why a program has failed. Raises
        NodeDiedError if there is one."""
        deadline = time.monotonic() + _ANSWER
        for name, messages in self._messages.items():
            if name in self._away or "failed" in messages or "done" in messages:
                continue
            while name not in self._ended and name in self._pids and processes.is_ending(self._pids[name]):
                if not self._receive(deadline):
                    break
            if name in self._ended and not {"failed", "done"} & self._messages[name].keys():
                raise self._died(name)

    def _died(self, name: str) -> NodeDiedError:
        output = end_of(self._logs / f"{name}.log", _MAX_SHOWN)
        what = f"{name}: its process {_describe_status(self._ended[name])}" + (f":\n{output}" if output else "")
        return NodeDiedError(what, [name])

    def _receive(self, deadline: float) -> bool:
        """Wait for words until the deadline, and process them; return whether there was any."""
        ready = [descriptor for descriptor, _ in self._ready.poll(max(0.0, deadline - time.monotonic()) * 1000)]
        for descriptor in ready:
            if self._ends_with is not None and descriptor == self._ends_with[0]:
                raise ClusterEndedError(self._ends_with[1])
            if descriptor in self._names:
                self._receive_from(self._names[descriptor])
            elif descriptor != self._warm.fileno():  # a node's, whose last words were read when its end was reported
                continue
            elif (message := self._warm.receive()) is not None:
                name, number = message[1] if isinstance(message[1], tuple) else ("", 0)
                if message[0] == "forked":
                    self._pids[name] = number
                    continue
                self._receive_rest(name)
                self._ended[name] = number
            else:
                self._reap_parent()
                raise NodeDiedError("the parent of all node processes has died, and they with it", self._messages)
        return bool(ready)

    def _receive_from(self, name: str) -> None:
        channel = self._channels[name]
        message = channel.receive()
        if message is not None:
            self._messages[name][message[0]] = message[1]
        else:
            self._forget(channel)

    def _receive_rest(self, name: str) -> None:
        """Read the words that a process sent before it ended. Its end of the channel may outlive it, in a process that it
        has forked."""
        channel = self._channels.get(name)
        while channel is not None and channel.fileno() in self._names:
            if channel.has_word():
                self._receive_from(name)
            else:
                self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        self._ready.unregister(channel.fileno())
        del self._names[channel.fileno()]

    def _describe_silent(self, name: str) -> str:
        """Describe a process that does not answer: it is in the kernel, or in a library that blocks signals."""
        if name not in self._pids:
            return "its process has not been started"
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self._pids[name]}/status").read_text().splitlines():
                if line.startswith("State:"):
                    return f"it does not answer; its process's state is {line.removeprefix('State:').strip()}"
        return "it does not answer"


def _describe_status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"


_BYTES: Final = 4_000  # of a log's end
_LINES: Final = 10  # of a node
_ALL: Final = 100  # lines


def printed(logs: Path, nodes: Iterable[str]) -> list[str]:
    """Read the last lines of each node that has printed anything, behind the node's name, with a heading."""
    lines = []
    for node in nodes:
        end = end_of(logs / f"{node}.log", _BYTES)
        lines += [f"  {node}: {line}" for line in end.splitlines()[-_LINES:]]
    if len(lines) > _ALL:
        lines[_ALL:] = [f"  and {len(lines) - _ALL:,} lines more in {logs}"]
    return ["what was printed until then:", *lines] if lines else []


def end_of(log: Path, size: int) -> str:
    """Read the text of at most `size` bytes at a file's end; empty where there is no file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))  # it may be as large as the disk
            return file.read(size).decode(errors="replace").strip()
    except OSError:
        return ""
