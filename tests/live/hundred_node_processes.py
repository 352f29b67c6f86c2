"""Measure a hundred node processes, from a parent as small as the command.

Prints one JSON object: the seconds until all had started, and the private bytes of each. The argument selects the
protocol: "echo" or "emp".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from protocols.core.firmware import Host
from protocols.emp import codec, host
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live import echo_protocol

TIMEOUT = 20.0  # s
PROTOCOLS = {"echo": (echo_protocol.plug, echo_protocol.ETHERTYPE), "emp": (host.plug(), codec.ETHERTYPE)}


async def idle(_endpoint: Host, node: ProgramNode) -> int:
    return node.number


def private_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other; the rest is shared with its parent."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main() -> None:
    plug, ethertype = PROTOCOLS[sys.argv[1]]
    with Cluster.star(100).up() as cluster:
        programs = {node.name: idle for node in cluster}
        start = time.monotonic()
        with agents(cluster, plug, ethertype, programs) as run:
            took = time.monotonic() - start
            sizes = [private_bytes(pid) for pid in run.pids.values()]
            results = run.wait(TIMEOUT).results
    json.dump({"took": took, "sizes": sizes, "pids": len(set(run.pids.values())), "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
