"""Agents and host processes of shared NICs, forked by the benchmark, which collects their results."""

import contextlib
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.harness.contenders import ContenderError
from testbed.kernel import syscalls
from testbed.runtime.shared.agent import NicConfig, SharedAgent

TIMEOUT = 600.0  # s


class Process:
    """A forked child, which dies with the benchmark. cpu: the processor that it is bound to, or -1."""

    def __init__(self, namespace: str, cpu: int, function: Callable[[Callable[[object], None]], object]) -> None:
        """function(report): runs in the child; `next_report` returns each value that it passes to `report`, and then its
        result. namespace: path of a network namespace, or "" for the present one."""
        self._connection, child_end = multiprocessing.connection.Pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                syscalls.end_with_parent(signal.SIGKILL)
                self._connection.close()
                if cpu >= 0:
                    os.sched_setaffinity(0, {cpu})
                if namespace:
                    with open(namespace) as remote:
                        syscalls.setns(remote.fileno(), syscalls.CLONE_NEWNET)
                child_end.send(function(child_end.send))
                status = 0
            except BaseException:  # noqa: BLE001  the child must not continue in the benchmark's code
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        child_end.close()
        self._ended = False

    def next_report(self) -> Any:
        """Return the process's next report. Raises ContenderError if the process has ended, or after TIMEOUT."""
        try:
            if self._connection.poll(TIMEOUT):
                return self._connection.recv()
        except EOFError:
            raise ContenderError("a process has ended early") from None
        raise ContenderError(f"a process has not reported for {TIMEOUT:g} s")

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._ended = True
            self._connection.close()


def agent(config: NicConfig, namespace: str = "", cpu: int = -1) -> Process:
    """Start an agent; return when it listens."""

    def run(report: Callable[[object], None]) -> None:
        shared = SharedAgent(config)
        report("listens")
        shared.run()

    process = Process(namespace, cpu, run)
    process.next_report()
    return process
