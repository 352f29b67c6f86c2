"""Long-lived process that runs programs on two nodes: with one pair of interfaces, and with a Myrinet crossbar.

Requests and replies are lines of JSON; see `contenders.LineProcess`, and `measurements.Nodes` for the client.
"""

import json
import sys
from contextlib import ExitStack
from typing import Any

from benchmarks.am2.am2_programs import PING, PONG, programs
from benchmarks.harness.direct_pair import direct_pair
from protocols.am2.protocol import PROTOCOL as AM2
from protocols.emp.protocol import PROTOCOL as EMP
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.errors import TestbedError
from testbed.spec.elements import Link, Node, Switch

TIMEOUT = 3600.0  # s
PROGRESS_TIMEOUT = 60.0  # s without progress
SPIN = 10_000_000_000  # ns: longer than any run
PAIR, CROSSBAR = "pair", "crossbar"


def clusters() -> dict[str, Cluster]:
    crossbar = Cluster(
        name=CROSSBAR,
        nodes=[Node(name=PING), Node(name=PONG)],
        switches=[Switch(name="s1", kind="myrinet")],
        links=[Link(ends=[PING, "s1:1"]), Link(ends=[PONG, "s1:2"])],
    )
    return {PAIR: direct_pair(), CROSSBAR: crossbar}


class Nodes:
    """The nodes of the two clusters, which are up until `close`."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self._clusters = {name: stack.enter_context(cluster.up()) for name, cluster in clusters().items()}
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def addresses(self) -> dict[str, Any]:
        return {
            node.name: {"namespace": node.namespace, "address": node.address, "mac": node.layout.nics[0].mac}
            for node in self._clusters[PAIR]
        }

    def run(self, cluster: str, kind: str, count: int, spin: bool, cpus: list[int]) -> dict[str, Any]:
        """Run `programs` once; return the first node's result, and the reason if the run is invalid.

        spin: poll without sleeping, each node on its own processor.
        """
        protocol = EMP if kind.startswith("emp") else AM2
        pinned = dict(zip((PING, PONG), cpus, strict=True)) if spin else None
        with agents(
            self._clusters[cluster], protocol.plug, protocol.ethertype, programs(kind, count),
            spin=SPIN if spin else 0, cpus=pinned,
        ) as run:  # fmt: skip
            outcome = run.wait(TIMEOUT, patience=PROGRESS_TIMEOUT)
        counted = [report.counted for report in outcome.reports.values()]
        resent = sum(counts.get("frames_resent", 0) + counts.get("packets_resent", 0) for counts in counted)
        return {"result": outcome.results.get(PING), "invalid": outcome.invalid, "resent": resent}


def main() -> None:
    nodes = Nodes()
    commands = {"addresses": nodes.addresses, "run": nodes.run}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                reply = commands[request.pop("command")](**request)
            except TestbedError as error:
                reply = {"error": str(error)}
            print(json.dumps(reply), flush=True)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
