"""Long-lived process that brings clusters up, injects, and reads the relay's report on request.

Requests and answers are lines of JSON; see `contenders.LineProcess`, and `clusters` for the client. Clusters that are
still up when this process ends are taken down.
"""

import json
import sys
import time
from typing import Any

from testbed import Cluster
from testbed.cluster.faults import fault_injection
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.services import relay_client


class Clusters:
    """Running clusters by name."""

    def __init__(self) -> None:
        self._running: dict[str, RunningCluster] = {}
        self._store = Store()

    def up(self, name: str, shape: str, nodes: int, keys: dict[str, Any], datapath: Any) -> dict[str, Any]:
        description = Cluster.star(nodes, **keys) if shape == "star" else Cluster.back_to_back(**keys)
        if datapath == "direct":  # one pair of interfaces, by declaration
            links = [link.model_copy(update={"datapath": "direct"}) for link in description.links]
            description, datapath = description.model_copy(update={"links": tuple(links)}), "auto"
        cluster = self._running[name] = description.up(name=name, datapath=datapath)
        return {
            "nodes": {
                node.name: {"namespace": node.namespace, "address": node.address, "mac": node.layout.nics[0].mac}
                for node in cluster
            },
            "datapaths": dict(cluster.state.datapaths),
        }

    def inject(self, name: str, target: str, keys: dict[str, Any], rules: list[str]) -> dict[str, Any]:
        start = time.monotonic()
        fault_injection.inject(self._store, name, target, keys, rules=rules)
        return {"seconds": time.monotonic() - start, "datapaths": dict(self._store.choose(name).datapaths)}

    def heal(self, name: str) -> dict[str, Any]:
        start = time.monotonic()
        fault_injection.heal(self._store, name)
        return {"seconds": time.monotonic() - start}

    def report(self, name: str) -> dict[str, Any]:
        return relay_client.report(self._store, self._store.choose(name)) or {}

    def down(self, name: str) -> dict[str, Any]:
        self._running.pop(name).down()
        return {}

    def close(self) -> None:
        for name in list(self._running):
            self.down(name)


def main() -> None:
    clusters = Clusters()
    functions = (clusters.up, clusters.inject, clusters.heal, clusters.report, clusters.down)
    commands = {function.__name__: function for function in functions}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(commands[request.pop("command")](**request)), flush=True)
    finally:
        clusters.close()


if __name__ == "__main__":
    main()
