"""Run of host programs on NICs of a cluster's nodes, as seen from the process that starts it::

with Run(orders, logs, directory) as run:
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
from testbed.runtime.nodes import warm_parent
from testbed.runtime.nodes.control_channel import Channel
from testbed.runtime.nodes.node_process import ByRank, NicReport
from testbed.runtime.nodes.program_output import describe_death, describe_status, last_output
from testbed.runtime.nodes.run_orders import ModelFault, RunOrders
from testbed.runtime.nodes.run_progress import Progress
from testbed.spec.units import format_duration

TIMEOUT: Final = 30.0
"""Maximum seconds for node processes to start, and to end after "stop"."""

_START_DELAY: Final = 5_000_000
"""Nanoseconds from "go" to time 0 of a dilated run, so that every node process gets "go" before."""

_REPLY_TIMEOUT: Final = 1.0  # seconds for nodes to report what they wait for
_CHECKS: Final = 10  # number of checks of progress during `patience`


class ProgramError(TestbedError):
    """A node's program has raised an error; the message contains its traceback. when: time on the histories' clock,
    nanoseconds, until which operations in progress at the error could continue; -1: they could not continue."""

    when = -1


class NodeDiedError(TestbedError):
    """Node processes have ended unexpectedly. nodes: names of their nodes."""

    def __init__(self, message: str, nodes: Iterable[str]) -> None:
        self.nodes = tuple(nodes)
        super().__init__(message)


class ClusterEndedError(TestbedError):
    """The process that held the nodes' namespaces has died, and the cluster with it."""


class StuckError(TestbedError):
    """A run takes too long, or makes no progress. waiting: sentences about what each node waits for, by node."""

    def __init__(self, message: str, waiting: Mapping[str, list[str]], output: Sequence[str] = ()) -> None:
        """output: a heading and lines that programs have printed (see `last_output`)."""
        self.waiting = waiting
        lines = [f"  {name}: {sentence}" for name, sentences in waiting.items() for sentence in sentences]
        super().__init__("\n".join([f"{message}; the nodes report:", *lines, *output]))


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run. results: results of the programs, by rank name. reports: reports of their NICs, by node."""

    results: Mapping[str, Any]
    reports: Mapping[str, NicReport]


def _ignore() -> None:
    pass


class Run:
    """A run of node processes. The end of its ``with`` block ends them."""

    def __init__(
        self, orders: RunOrders, logs: Path, directory: Path, on_ready: Callable[[Self], object] | None = None
    ) -> None:
        """Start the node processes; return when every program has been started.

        logs: a directory for the nodes' output. directory: the cluster's directory, for events. on_ready: called when all
        NICs are up, before any program is started. Raises NodeDiedError, ProgramError, FirmwareError, StuckError,
        KernelError, and the errors of `on_ready`.
        """
        self._orders = orders
        self._logs = logs
        self._directory = directory
        self._pids: dict[str, int] = {}
        self._channels: dict[str, Channel] = {}
        self._names: dict[int, str] = {}  # of nodes, by the descriptors of their channels
        self._messages: dict[str, dict[str, object]] = {placement.name: {} for placement in orders.placements}
        self._ended: dict[str, int] = {}  # node -> wait status of its process
        self._crashed: dict[str, bool] = {}  # node -> whether it will be restarted
        self._paused: set[str] = set()
        self._scheduled: list[tuple[int, int, Callable[[], object]]] = []  # a heap: time, sequence number, call
        self._next_sequence = itertools.count().__next__
        self._poll = select.poll()
        self._started = 0
        self._progress = Progress(len(orders.placements))
        self._parent: tuple[int, int] | None = None  # pid and pidfd of the parent of all node processes
        self._holder: tuple[int, str] | None = None  # pidfd of the namespace holder, and the error if it dies
        self.before_stop: Callable[[], object] = _ignore
        """Called by `wait` when every program has ended, while the NICs still serve their peers."""
        self._needs_restore = False  # whether the parent has ended without restoring the NICs' offloads
        ends: dict[str, Channel] = {}
        self._warm_channel, end = Channel.pair()
        try:
            for placement in orders.placements:
                self._channels[placement.name], ends[placement.name] = Channel.pair()
            pid = warm_parent.start(orders, end, ends, logs, directory, self._progress).pid
            self._parent = pid, os.pidfd_open(pid)
        except BaseException:
            self.close()
            self._restore_offloads()
            raise
        finally:
            for channel in (end, *ends.values()):
                channel.close()
        self._poll.register(self._warm_channel.fileno(), select.POLLIN)
        for name, channel in self._channels.items():
            self._names[channel.fileno()] = name
            self._poll.register(channel.fileno(), select.POLLIN)
        try:
            self._start_programs(on_ready)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def start_time(self) -> int:
        """Time at which the programs were started, monotonic nanoseconds; in a dilated run the time at which its clock shows
        0. Before the start: the present time."""
        return self._started or time.monotonic_ns()

    @property
    def pids(self) -> Mapping[str, int]:
        """Pids of the node processes, by node."""
        return self._pids

    def log(self, node: str) -> str:
        """Read the output that a node's program has written so far."""
        return (self._logs / f"{node}.log").read_text(errors="replace")

    def kill(self, node: str) -> None:
        """Kill a node process (SIGKILL), as a fault. Name the node in `wait(without=...)`, or `wait` raises."""
        self._warm_channel.send("kill", node)

    def watch_holder(self, pidfd: int, reason: str) -> None:
        """Watch the cluster's namespace holder, at whose end `wait` raises ClusterEndedError. reason: message of the
        error."""
        self._holder = pidfd, reason
        self._poll.register(pidfd, select.POLLIN)

    def ranks_on(self, node: str) -> list[str]:
        """Return the names of a node's ranks in this run."""
        return [placement.name for placement in self._orders.placements if placement.node_name == node]

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Schedule a call, to be made by `wait`, which raises the call's errors. when: nanoseconds after the start of the
        programs."""
        heapq.heappush(self._scheduled, (when, self._next_sequence(), act))

    def has_ended(self, node: str) -> bool:
        """Whether a node's process or its program has ended."""
        return node in self._ended or "done" in self._messages[node]

    def crash(self, node: str, *, restarts: bool = False) -> None:
        """Kill a node process that has not ended, and wait for its end. restarts: whether `restart` will be called, so that
        `wait` waits for the restarted program; otherwise `wait` does not wait for the node any more. Raises StuckError, and
        NodeDiedError or ClusterEndedError if all processes or the cluster have ended."""
        self._crashed[node] = restarts
        self._paused.discard(node)
        self.kill(node)
        deadline = time.monotonic() + TIMEOUT
        while node not in self._ended:
            if not self._receive(deadline):
                raise StuckError(f"{node}: its process has not ended {TIMEOUT:g} s after SIGKILL", {})
        self._report_departure(node, restarts)

    def _report_departure(self, node: str, restarts: bool) -> None:
        """Notify the other node processes that a node's ranks have crashed, and whether they will restart."""
        crashed = next(placement for placement in self._orders.placements if placement.name == node)
        adapters = crashed.model.adapters if crashed.model is not None else (crashed.adapter,)
        for name, channel in self._channels.items():
            if name != node and name not in self._ended:
                for adapter in adapters:
                    with contextlib.suppress(ConnectionError):  # the other process has just ended
                        channel.send("departed", (adapter.number, restarts))

    def restart(self, node: str) -> None:
        """Restart a node process that `crash` has ended, with a new incarnation of its NIC and its program from the
        beginning; return when the program has been started. Raises the errors of `wait`; StuckError if the process is not
        ready within TIMEOUT."""
        channel, end = Channel.pair()
        self._channels[node].close()
        self._channels[node] = channel
        self._names[channel.fileno()] = node
        self._poll.register(channel.fileno(), select.POLLIN)
        self._messages[node] = {}
        del self._ended[node], self._crashed[node]
        self._warm_channel.send("restart", node, end)
        end.close()
        deadline = time.monotonic() + TIMEOUT
        while not self._has_sent(node, "ready", ()):
            if not self._receive(deadline):
                raise StuckError(f"{node}: its restarted process is not ready after {TIMEOUT:g} s", self.pending_work())
        channel.send("go", (self.start_time, True))

    def pause(self, node: str) -> None:
        """Stop a node process (SIGSTOP) until `resume`, or until all programs have ended."""
        self._paused.add(node)
        self._warm_channel.send("pause", node)

    def resume(self, node: str) -> None:
        """Continue a paused node process (SIGCONT)."""
        self._paused.discard(node)
        self._warm_channel.send("resume", node)

    def apply_model_fault(self, node: str, fault: ModelFault) -> None:
        """Apply a fault to the model of a node in a dilated run."""
        with contextlib.suppress(ConnectionError):  # the node process has just ended; `wait` reports it
            self._channels[node].send("model", fault)

    def wait(self, seconds: float, without: Collection[str] = (), *, patience: float | None = None) -> RunOutcome:
        """Wait until every program has ended, and end the run. seconds: maximum time from this call to the end of the last
        program. without: nodes whose death or error is no error of the run. patience: maximum seconds without any progress
        (see `run_progress`), which must exceed both the time for which a program computes or sleeps and the duration of a
        transfer; None: no limit.

        Raises ProgramError, FirmwareError, NodeDiedError, ClusterEndedError and the errors of scheduled calls at once;
        StuckError when `seconds` or `patience` is exceeded, or a node sends no report within TIMEOUT of the end.
        """
        began = progressed = checked = time.monotonic()
        interval = seconds if patience is None else patience / _CHECKS
        running_before = len(self._messages)
        while running := sum(not self._has_sent(name, "done", without) for name in self._messages):
            due = (self._started + self._scheduled[0][0]) / 1e9 if self._scheduled else began + seconds
            self._receive(min(began + seconds, checked + interval, due))
            self._make_scheduled_calls()
            now = time.monotonic()
            if patience is not None and now >= checked + interval:
                last_transfer = max(self._progress.last_times()) / 1e9
                progressed = max(progressed, last_transfer) if running == running_before else now
                if now >= progressed + patience:
                    raise self._stuck(f"for {now - progressed:.3g} s no program and no transfer has ended on any node")
                checked, running_before = now, running
            if now >= began + seconds:
                raise self._stuck(f"programs have not ended within {seconds:g} s{self._model_time(seconds)}")
        for name in sorted(self._paused):
            self.resume(name)
        self.before_stop()
        for name, channel in self._channels.items():
            if name not in self._ended:
                with contextlib.suppress(ConnectionError):
                    channel.send("stop")
        self._wait_for("report", without)
        reports = {name: report for name, report in self._data_of("report").items() if isinstance(report, NicReport)}
        results: dict[str, object] = {}
        for name, result in self._data_of("done").items():
            results |= result if isinstance(result, ByRank) else {name: result}
        return RunOutcome(results, reports)

    def _model_time(self, seconds: float) -> str:
        """Return a clause of a message with the model's time that passes in a dilated run; empty for other runs."""
        dilation = self._orders.dilation
        if dilation is None:
            return ""
        passed = format_duration(round(seconds * 1e9 / dilation.factor))
        return f", which are {passed} of model time; a smaller dilation factor or a longer timeout allows more"

    def _stuck(self, message: str) -> StuckError:
        """Make the error of a stuck run, with the nodes' states and the last transfer."""
        waiting = self.pending_work()
        last_transfers = list(zip(self._progress.last_times(), self._messages, strict=True))
        last, node = max(last_transfers, default=(0, ""))
        if last:
            ago, after = (time.monotonic_ns() - last) / 1e9, (last - self.start_time) / 1e9
            message += (
                f"; the last transfer ended on {node} {ago:.3g} s ago, {max(0.0, after):.6f} s after the beginning"
            )
        else:
            message += "; no transfer has ended since the beginning"
        return StuckError(message, waiting, last_output(self._logs, self._messages))

    def _make_scheduled_calls(self) -> None:
        """Make the scheduled calls that are due."""
        while self._scheduled and self._started + self._scheduled[0][0] <= time.monotonic_ns():
            heapq.heappop(self._scheduled)[2]()

    def _data_of(self, word: str) -> dict[str, object]:
        """Return the data of each node's message with this word."""
        return {name: messages[word] for name, messages in self._messages.items() if word in messages}

    def pending_work(self) -> dict[str, list[str]]:
        """Ask every node what it waits for; return sentences by node. For a node that does not answer, they describe the
        state of its process."""
        for messages in self._messages.values():
            messages.pop("waiting", None)
        self._warm_channel.send("ask")
        deadline = time.monotonic() + _REPLY_TIMEOUT
        while any("waiting" not in messages and name not in self._ended for name, messages in self._messages.items()):
            if not self._receive(deadline):
                break
        sentences: dict[str, list[str]] = {}
        for name, messages in self._messages.items():
            answer = messages.get("waiting")
            if name in self._ended:
                sentences[name] = [describe_status(self._ended[name])]
            else:
                sentences[name] = (
                    [str(sentence) for sentence in answer]
                    if isinstance(answer, list)
                    else [self._describe_unresponsive(name)]
                )
        return sentences

    def close(self) -> None:
        """Kill the processes that still run, wait for their end, and restore the nodes' NICs."""
        self._warm_channel.close()
        self._reap_parent()
        for channel in self._channels.values():  # last: a node process ends by itself when its channel is closed
            channel.close()
        self._channels.clear()
        self._progress.close()
        if self._needs_restore:
            self._needs_restore = False
            self._restore_offloads()

    def _reap_parent(self) -> None:
        """Wait for the end of the parent of all node processes, and record an event if it has died."""
        if self._parent is None:
            return
        pid, pidfd = self._parent
        self._parent = None
        if not wait_for_end(pidfd, TIMEOUT):  # the parent has been stopped (SIGSTOP)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            wait_for_end(pidfd)
        os.close(pidfd)
        self._needs_restore = True
        with contextlib.suppress(ChildProcessError):  # other code has waited for all children of this process
            _, status = os.waitpid(pid, 0)
            self._needs_restore = bool(status)
            if status:
                code = os.waitstatus_to_exitcode(status)
                event_log.record_if_possible(
                    self._directory, "node parent died", nodes=[*self._messages], pid=pid, code=code
                )

    def _restore_offloads(self) -> None:
        """Restore the NICs' offloads in place of the parent of the node processes, in a child process."""
        in_child(partial(warm_parent.restore_offloads, self._orders, self._directory))

    def _start_programs(self, on_ready: Callable[[Self], object] | None) -> None:
        self._wait_for("ready", ())
        for name, messages in self._messages.items():
            pid = messages["ready"]
            assert isinstance(pid, int)
            self._pids[name] = pid
        if on_ready is not None:
            on_ready(self)
        started = time.monotonic_ns() + (_START_DELAY if self._orders.dilation is not None else 0)
        for channel in self._channels.values():
            with contextlib.suppress(ConnectionError):  # the node has ended; `wait` reports it
                channel.send("go", (started, bool(self._scheduled)))  # nodes crash only in scheduled calls
        self._started = started

    def _wait_for(self, word: str, without: Collection[str]) -> None:
        """Wait until every node has sent a message with this word. Raises StuckError after TIMEOUT, and the errors of
        `_has_sent` and `_receive`."""
        deadline = time.monotonic() + TIMEOUT
        while not all(self._has_sent(name, word, without) for name in self._messages):
            if not self._receive(deadline):
                raise StuckError(f"node processes have not sent {word!r} within {TIMEOUT:g} s", self.pending_work())

    def _has_sent(self, name: str, word: str, without: Collection[str]) -> bool:
        """Whether a node has sent a message with this word, or is not expected to. Raises the error of a failed or dead
        node."""
        messages = self._messages[name]
        if word in messages:
            return True
        if name in without and (name in self._ended or "failed" in messages):
            return True
        if name in self._crashed and name in self._ended:
            return not self._crashed[name]
        if "failed" in messages:
            failure = messages["failed"]
            if isinstance(failure, tuple):
                what, when = failure
                raise FirmwareError(what, when, name)
            self._check_for_deaths()
            raise ProgramError(f"{name}: {failure}")
        if name in self._ended:
            raise self._death(name)
        return False

    def _check_for_deaths(self) -> None:
        """Raise NodeDiedError if another node process has died, which may be why a program has failed."""
        deadline = time.monotonic() + _REPLY_TIMEOUT
        for name, messages in self._messages.items():
            if name in self._crashed or "failed" in messages or "done" in messages:
                continue
            while name not in self._ended and name in self._pids and processes.is_ending(self._pids[name]):
                if not self._receive(deadline):
                    break
            if name in self._ended and not {"failed", "done"} & self._messages[name].keys():
                raise self._death(name)

    def _death(self, name: str) -> NodeDiedError:
        """Make the error of a dead node process."""
        return NodeDiedError(describe_death(self._ended[name], self._logs, name), [name])

    def _receive(self, deadline: float) -> bool:
        """Wait for messages until the deadline, and handle them; return whether there was one. deadline: as in
        `time.monotonic`."""
        ready = [descriptor for descriptor, _ in self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)]
        for descriptor in ready:
            if self._holder is not None and descriptor == self._holder[0]:
                raise ClusterEndedError(self._holder[1])
            if descriptor in self._names:
                self._receive_from(self._names[descriptor])
            elif descriptor != self._warm_channel.fileno():
                continue  # channel of an ended node: its messages were read with the report of its end
            elif (message := self._warm_channel.receive()) is not None:
                name, number = message[1] if isinstance(message[1], tuple) else ("", 0)
                if message[0] == "forked":
                    self._pids[name] = number
                    continue
                self._receive_rest(name)
                self._ended[name] = number
            else:
                self._reap_parent()
                raise NodeDiedError(
                    "the parent of all node processes has died, and all of them with it", self._messages
                )
        return bool(ready)

    def _receive_from(self, name: str) -> None:
        channel = self._channels[name]
        message = channel.receive()
        if message is not None:
            self._messages[name][message[0]] = message[1]
        else:
            self._forget(channel)

    def _receive_rest(self, name: str) -> None:
        """Read the messages that a node process sent before it ended. There may be no end of file: a process that it has
        forked may keep its end of the channel open."""
        channel = self._channels.get(name)
        while channel is not None and channel.fileno() in self._names:
            if channel.has_message():
                self._receive_from(name)
            else:
                self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        self._poll.unregister(channel.fileno())
        del self._names[channel.fileno()]

    def _describe_unresponsive(self, name: str) -> str:
        """Describe a process that does not answer, since it runs in the kernel, or in a library that blocks signals."""
        if name not in self._pids:
            return "its process has not been started"
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self._pids[name]}/status").read_text(errors="replace").splitlines():
                if line.startswith("State:"):
                    return f"it does not answer; its process's state is {line.removeprefix('State:').strip()}"
        return "it does not answer"
