"""Agents of shared NICs and host processes in a cluster's nodes: forked children that report to the test."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from protocols.core.firmware import Adapter
from protocols.core.split_memory import SplitDriver
from protocols.emp.codec import ETHERTYPE
from protocols.emp.split_driver import split_driver as emp
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.kernel import syscalls
from testbed.runtime.calls import call
from testbed.runtime.shared.agent import NicConfig, SharedAgent
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.shared.standing_agent import query_socket
from testbed.spec.placement import address_of

TIMEOUT = 30.0  # seconds
HEAP = 8 << 20

Program = Callable[[Any, HostDriver, Attachment], Any]
"""Coroutine function of (host library, driver, NIC)."""


class Process:
    """A forked child in a network namespace, killed when its parent dies."""

    def __init__(self, function: Callable[[Callable[[object], None]], object], namespace: str) -> None:
        """function(report): runs in the child; `next_report` returns the values passed to `report`, then the result."""
        self._connection, child_end = multiprocessing.connection.Pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                syscalls.end_with_parent(signal.SIGKILL)
                self._connection.close()
                with open(namespace) as remote:
                    syscalls.setns(remote.fileno(), syscalls.CLONE_NEWNET)
                child_end.send(("done", function(child_end.send)))
                status = 0
            except BaseException as error:  # noqa: BLE001  the child must not continue the test run
                traceback.print_exc(file=sys.stderr)
                with contextlib.suppress(OSError):
                    child_end.send(("failed", f"{type(error).__name__}: {error}"))
            finally:
                os._exit(status)
        child_end.close()
        self._ended = False

    def next_report(self) -> Any:
        """Return the next message of the process. EOFError if it has ended."""
        assert self._connection.poll(TIMEOUT), f"process {self.pid} does not report"
        return self._connection.recv()

    def result(self) -> Any:
        reported = self.next_report()
        assert reported[0] == "done", reported
        return reported[1]

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self._ended:
            os.kill(self.pid, number)

    def close(self) -> None:
        if not self._ended:
            self.kill()
            os.waitpid(self.pid, 0)
            self._ended = True
            self._connection.close()


class Nodes:
    """Agents of a cluster's nodes. functions: maximum number of host processes per node. siblings: the adapters name the
    functions of one NIC (`Adapter.hosts`)."""

    def __init__(
        self, cluster: RunningCluster, functions: int, split_driver: SplitDriver, ethertype: int, *, siblings: bool
    ) -> None:
        self._cluster = cluster
        self._split_driver = split_driver
        self._ethertype = ethertype
        self._hosts, functions = (functions, 1) if split_driver.hosts > 1 else (1, functions)
        self._names = [node.name for node in cluster]
        macs = [bytes.fromhex(node.layout.nics[0].mac.replace(":", "")) for node in cluster]
        self._addresses = tuple(address_of(mac, function) for mac in macs for function in range(functions))
        self._functions = functions
        numbers = range(len(self._addresses) if siblings else 0)
        self._first_functions = tuple(number - number % functions for number in numbers)
        self._stack = contextlib.ExitStack()
        self.agents = {name: self.start(name) for name in self._names}

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def device(self, name: str) -> str:
        return self._cluster[name].layout.nics[0].name

    def start(self, name: str) -> Process:
        """Start an agent; return when it is listening."""
        first = self._names.index(name) * self._functions
        routed = name in self._cluster.state.layout.source_routed_nodes()
        adapters = tuple(
            Adapter(first + number, self._addresses, routed=routed, hosts=self._first_functions)
            for number in range(self._functions)
        )
        config = NicConfig(
            self._split_driver,
            self._ethertype,
            self.device(name),
            adapters,
            self._hosts,
            heap=HEAP,
            queries=self._query_socket(name),
        )

        def run(report: Callable[[object], None]) -> None:
            agent = SharedAgent(config)
            report("listening")
            agent.run()

        gc.collect()  # close leftovers of earlier tests here, not during a collection in the agent
        process = Process(run, self._cluster[name].namespace)
        self._stack.callback(process.close)
        assert process.next_report() == "listening"
        return process

    def host(self, name: str, program: Program, function: int | None = None) -> Process:
        """Start a host process; return when it has attached."""
        split_driver, device, ethertype = self._split_driver, self.device(name), self._ethertype

        def run(report: Callable[[object], None]) -> object:
            nic = Attachment(device, ethertype, split_driver, function)
            driver = HostDriver(nic, nic.host)
            report("attached")
            return driver.loop.complete(program(nic.host, driver, nic))

        process = Process(run, self._cluster[name].namespace)
        self._stack.callback(process.close)
        assert process.next_report() == "attached"
        return process

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a node's agent."""
        return call(self._query_socket(name), {"do": "report"})

    def _query_socket(self, name: str) -> Path:
        return query_socket(Store().directory(self._cluster.name), name)

    def regions(self, name: str) -> int:
        """Return the number of regions that a node's agent has mapped."""
        return Path(f"/proc/{self.agents[name].pid}/maps").read_text().count("memfd:nic ")

    def descriptors(self, name: str) -> int:
        """Return the number of file descriptors that a node's agent has open."""
        return len(os.listdir(f"/proc/{self.agents[name].pid}/fd"))


@contextlib.contextmanager
def nodes(
    cluster: RunningCluster,
    functions: int = 2,
    split_driver: SplitDriver | None = None,
    ethertype: int = ETHERTYPE,
    *,
    siblings: bool = False,
) -> Iterator[Nodes]:
    with Nodes(cluster, functions, split_driver or emp(), ethertype, siblings=siblings) as running:
        yield running


def wait_for_results(processes: Sequence[Process]) -> list[Any]:
    return [process.result() for process in processes]
