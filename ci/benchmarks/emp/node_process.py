"""Long-lived process that runs programs on two nodes with one pair of interfaces.

Requests and answers are lines of JSON; see `contenders.LineProcess`, and `measurements.Nodes` for the client.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.host_programs import PING, PONG, Pair, programs
from benchmarks.harness.idle_processes import wait_until_idle
from protocols.emp.codec import ETHERTYPE
from protocols.emp.host import Endpoint, plug
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.errors import TestbedError
from testbed.runtime.nodes.node_run import Run
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.run_orders import ProgramNode

TIMEOUT = 3600.0  # s
PROGRESS_TIMEOUT = 60.0  # s without progress
SPIN = 10_000_000_000  # ns: never sleep


class Nodes:
    """The two nodes, which are up until `close`."""

    def __init__(self) -> None:
        self._cluster = direct_pair().up()
        self._nics = {node.name: node.layout.nics[0] for node in self._cluster}

    def close(self) -> None:
        self._cluster.down()

    def addresses(self) -> dict[str, Any]:
        return {
            node.name: {"namespace": node.namespace, "address": node.address, "mac": node.layout.nics[0].mac}
            for node in self._cluster
        }

    def run(self, kind: str, count: int, spin: bool, poll: int, cpus: list[int]) -> dict[str, Any]:
        """Run `programs` once; return both results, and the reason if the run is invalid.

        spin: never sleep. poll: otherwise, nanoseconds to poll before sleeping.
        """
        devices = {name: nic.name for name, nic in self._nics.items()}
        macs = {name: bytes.fromhex(nic.mac.replace(":", "")) for name, nic in self._nics.items()}
        node_programs = programs(kind, Pair(devices, macs, spin, poll), count)
        pinned = dict(zip((PING, PONG), cpus, strict=True))
        budget = SPIN if spin else 0
        default, Patience.SPIN = Patience.SPIN, poll  # inherited by the node processes
        try:
            with agents(self._cluster, plug(), ETHERTYPE, node_programs, spin=budget, cpus=pinned) as run:
                outcome = run.wait(TIMEOUT, patience=PROGRESS_TIMEOUT)
        finally:
            Patience.SPIN = default
        resent = sum(report.counted["frames_resent"] for report in outcome.reports.values())
        return {"results": dict(outcome.results), "invalid": outcome.invalid, "resent": resent}

    def many(self, nodes: int) -> dict[str, Any]:
        """Return the seconds until the processes of a star's nodes listen, the seconds until they have ended, and the bytes
        of each (`_sizes`)."""
        with Cluster.star(nodes).up() as cluster:
            start = time.monotonic()
            with agents(cluster, plug(), ETHERTYPE, {node.name: idle for node in cluster}, spin=0) as run:
                begin_time = time.monotonic() - start
                sizes = _sizes(run)
                start = time.monotonic()
            return {"begin": begin_time, "end": time.monotonic() - start, **sizes}


async def idle(endpoint: Endpoint, node: ProgramNode) -> None:
    await endpoint.receive((node.number + 1) % endpoint.size, 1, bytearray(4))


def _sizes(run: Run) -> dict[str, list[int]]:
    """Return bytes of each process: private, and including its share of shared memory."""
    wait_until_idle(run.pids.values())
    samples: dict[str, list[int]] = {"private": [], "proportional": []}
    for pid in run.pids.values():
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
        kilobytes = {line[0]: int(line[1]) for line in lines}
        samples["private"].append((kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"]) * 1024)
        samples["proportional"].append(kilobytes["Pss:"] * 1024)
    return samples


def main() -> None:
    nodes = Nodes()
    commands = {"addresses": nodes.addresses, "run": nodes.run, "many": nodes.many}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = commands[request.pop("command")](**request)
            except TestbedError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
