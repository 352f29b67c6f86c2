"""The controller's side of workers: start one on each machine, and make calls.

Each worker has a single connection, over which it was started. The Python that the machines file states for a machine must
have the controller's version of testbed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import metadata
from threading import Event, Thread
from typing import Any, Final

from testbed.errors import (
    ConflictError,
    KernelError,
    NotFoundError,
    PermissionDeniedError,
    TestbedError,
    UnreadableStateError,
    UnsupportedError,
    reason_of,
)
from testbed.machines.machine_report import DISTRIBUTION
from testbed.machines.request_reader import KEEPALIVE_INTERVAL
from testbed.spec.machines import Machine
from testbed.ssh.machine_connections import LineChannel, UnreachableError, open_channel

CALL_TIMEOUT: Final = 120.0
"""Seconds until a call without a reply fails."""

_START_TIMEOUT: Final = 30.0  # s until a worker prints its greeting
_MAX_LOGIN_LINES: Final = 100  # lines that a login may print before the worker's greeting
_MAX_CONCURRENT: Final = 32  # connections opened at the same time
_GREETING: Final = "testbed-worker "
_ERRORS: Final[Mapping[str, type[TestbedError]]] = {
    error_class.__name__: error_class
    for error_class in (
        ConflictError,
        KernelError,
        NotFoundError,
        PermissionDeniedError,
        UnreadableStateError,
        UnsupportedError,
    )
}

_PROGRAM: Final = f"""\
import sys
sys.path[:] = [path for path in sys.path if path]
from importlib import metadata
try:
    installed = metadata.version({DISTRIBUTION!r})
except metadata.PackageNotFoundError:
    installed = "-"
print({_GREETING!r} + installed, flush=True)
if installed == sys.argv[1]:
    from testbed.controller.runs.machine_part import main
    main()
"""
"""Program that prints the installed version of testbed, and runs the worker if that is the controller's version. It must run
in any version of Python 3."""


class WorkerLostError(UnreachableError):
    """The connection to a worker has ended, or the worker has not answered in time: the worker, its machine or the network
    failed. machine: name of the machine."""

    def __init__(self, machine: str, text: str) -> None:
        self.machine = machine
        super().__init__(text)


class RemoteWorker:
    """Client of a machine's worker, which answers requests in order. A thread sends keepalives; without any input the worker
    exits after `request_reader.SILENCE`. messages: number of messages sent and received so far, without keepalives."""

    def __init__(self, machine: Machine, channel: LineChannel) -> None:
        self.machine = machine
        self.messages = 0
        self._channel = channel
        self._issued = 0
        self._closing = Event()
        self._keepalive = Thread(target=self._send_keepalives, daemon=True)
        self._keepalive.start()

    def begin(self, method: str, **arguments: object) -> int:
        """Send a request; return its number for `finish`."""
        self._issued += 1
        self._send({"number": self._issued, "call": method, "arguments": arguments})
        return self._issued

    def _send(self, request: Mapping[str, object]) -> None:
        self.messages += 1
        try:
            self._channel.send(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._lost(reason_of(error)) from error

    def finish(self, number: int, timeout: float | None = CALL_TIMEOUT) -> Any:
        """Wait for the reply to a request; requests must be finished in order. timeout: seconds; None: no limit. Raises the
        error that the call raised on the machine, and WorkerLostError if the connection has ended or no reply has come
        within `timeout`. The reply to an earlier request, for which the caller has stopped waiting, is skipped."""
        return self.answer(number, timeout)["reply"]

    def joint(self, number: int, timeout: float | None) -> tuple[str, Any]:
        """Wait for the next message of a joint call. Return the stage that the call has reached and None; or, when the call
        has ended, an empty text and the reply. timeout: seconds; None: no limit. Raises the errors of `finish`."""
        answer = self.answer(number, timeout)
        return answer.get("reached", ""), answer.get("reply")

    def answer_joint(self, number: int, word: str) -> None:
        """Send `PROCEED` or `STOP` to a joint call; then call `joint` for its next message."""
        self.answer_call(number, word)

    def answer_call(self, number: int, word: str, **fields: object) -> None:
        """Send a message to a call in progress; then call `answer` for its next message."""
        self._send({"number": number, "call": word, **fields})

    def answer(self, number: int, timeout: float | None = None) -> Mapping[str, Any]:
        """Wait for the next message of a call: an intermediate one, or the reply. timeout: seconds; None: no limit. Raises
        the errors of `finish`."""
        answer = self._receive(timeout)
        while answer["number"] != number:  # of an earlier call, for which the caller has stopped waiting
            answer = self._receive(timeout)
        if "error" in answer:
            error_class = _ERRORS.get(answer["class"], TestbedError)
            raise error_class(f"machine {self.machine.name}: {answer['error']}")
        return answer

    def _receive(self, timeout: float | None) -> Mapping[str, Any]:
        try:
            line = self._channel.receive(timeout)
        except TimeoutError as error:
            text = f"machine {self.machine.name}: its worker has not answered within {timeout:g} s"
            raise WorkerLostError(self.machine.name, text) from error
        except OSError as error:
            raise self._lost(reason_of(error)) from error
        if not line:
            raise self._lost(self._channel.last_error_line() or self._channel.end_reason())
        self.messages += 1
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def call(self, method: str, timeout: float | None = CALL_TIMEOUT, **arguments: object) -> Any:
        """Send a request and return the reply. Raises the errors of `finish`."""
        return self.finish(self.begin(method, **arguments), timeout)

    def _send_keepalives(self) -> None:
        with suppress(OSError):  # the next call reports that the connection is lost
            while not self._closing.wait(KEEPALIVE_INTERVAL):
                self._channel.send(b"\n")

    def close(self) -> None:
        """Close the connection, which ends the worker."""
        self._closing.set()
        self._channel.close()
        self._keepalive.join()

    def _lost(self, reason: str) -> WorkerLostError:
        return WorkerLostError(
            self.machine.name, f"machine {self.machine.name}: the connection to its worker has ended: {reason}"
        )


def start_worker(machine: Machine) -> RemoteWorker:
    """Connect to a machine and start its worker. Raises the errors of `open_channel`, and UnsupportedError if the
    machine has no testbed or another version of it."""
    local_version = metadata.version(DISTRIBUTION)
    channel = open_channel(
        machine, f"exec {_quote(machine.python)} -c {shlex.quote(_PROGRAM)} {shlex.quote(local_version)}"
    )
    try:
        remote_version = _read_version(machine, channel)
        if remote_version != local_version:
            present = f"has testbed {remote_version}" if remote_version != "-" else "does not have testbed"
            raise UnsupportedError(
                f"machine {machine.name}: {machine.python} there {present}, and this is testbed {local_version}: install "
                f"{DISTRIBUTION} {local_version} there, or name the Python that has it by the key 'python'"
            )
    except BaseException:
        channel.close()
        raise
    return RemoteWorker(machine, channel)


def _read_version(machine: Machine, channel: LineChannel) -> str:
    """Read the version that _PROGRAM prints, "-" if testbed is not installed; skip output of the login before it."""
    try:
        for _ in range(_MAX_LOGIN_LINES):
            text = channel.receive(_START_TIMEOUT).decode(errors="replace")
            if text.startswith(_GREETING):
                return text.removeprefix(_GREETING).strip()
            if not text:
                break
    except OSError as error:
        reason = f"no answer within {_START_TIMEOUT:g} s" if isinstance(error, TimeoutError) else reason_of(error)
        raise UnreachableError(f"machine {machine.name}: {machine.python} did not start there: {reason}") from error
    last_error = channel.last_error_line()
    raise UnsupportedError(
        f"machine {machine.name}: {machine.python} did not start there" + (f": {last_error}" if last_error else "")
    )


def _quote(program: str) -> str:
    """Quote a program's path for a shell, except for a leading ``~/``."""
    home, rest = ("~/", program[2:]) if program.startswith("~/") else ("", program)
    return home + shlex.quote(rest)


def start_each(machines: Sequence[Machine]) -> dict[str, RemoteWorker | TestbedError]:
    """Start workers concurrently; return, by machine, the worker or the error."""

    def attempt(machine: Machine) -> RemoteWorker | TestbedError:
        try:
            return start_worker(machine)
        except TestbedError as error:
            return error

    with ThreadPoolExecutor(min(_MAX_CONCURRENT, len(machines))) as pool:
        return dict(zip([machine.name for machine in machines], pool.map(attempt, machines), strict=True))


@contextmanager
def workers(machines: Sequence[Machine]) -> Iterator[Mapping[str, RemoteWorker]]:
    """Start a worker on each machine for the duration of the block. If a worker cannot be started, all are stopped, and
    the error lists every machine that failed."""
    with reachable_workers(machines) as (running, unreachable):
        _raise_all([*unreachable.values()])
        yield running


@contextmanager
def reachable_workers(
    machines: Sequence[Machine],
) -> Iterator[tuple[Mapping[str, RemoteWorker], Mapping[str, UnreachableError]]]:
    """Start workers as `workers`, but skip machines that cannot be reached, and also yield these machines' errors."""
    started = start_each(machines)
    running = {name: worker for name, worker in started.items() if isinstance(worker, RemoteWorker)}
    unreachable = {name: error for name, error in started.items() if isinstance(error, UnreachableError)}
    try:
        failures = [failure for failure in started.values() if isinstance(failure, TestbedError)]
        _raise_all([failure for failure in failures if not isinstance(failure, UnreachableError)])
        yield running, unreachable
    finally:
        for worker in running.values():
            worker.close()


def _raise_all(errors: Sequence[TestbedError]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise TestbedError("\n".join(map(str, errors)))


def call_each(running: Mapping[str, RemoteWorker], method: str, **arguments: Mapping[str, object]) -> dict[str, Any]:
    """Make a call on all machines concurrently, with one message to each; return the replies by machine.

    arguments: argument name -> machine -> value. After a failure, the other replies are still awaited; then the first error
    is raised.
    """
    replies = try_call_each(running, method, **arguments)
    for reply in replies.values():
        if isinstance(reply, TestbedError):
            raise reply
    return replies


def try_call_each(
    running: Mapping[str, RemoteWorker], method: str, **arguments: Mapping[str, object]
) -> dict[str, Any]:
    """Make a call as `call_each`; return, by machine, the reply or the TestbedError."""
    numbers: dict[str, int] = {}
    replies: dict[str, Any] = {}
    for name, worker in running.items():
        try:
            numbers[name] = worker.begin(method, **{key: values[name] for key, values in arguments.items()})
        except UnreachableError as error:
            replies[name] = error
    for name, number in numbers.items():
        try:
            replies[name] = running[name].finish(number)
        except TestbedError as error:
            replies[name] = error
    return replies
