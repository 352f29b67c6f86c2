"""A long-lived process with testbed loaded, which brings clusters up and down and runs commands in a node on request.

Commands are lines on standard input, and answers are lines of JSON; see `contenders.LineProcess`. The only argument is
``keep`` (namespaces are held by names in /run/netns, as by the command) or ``with`` (by this process's descriptors).
"""

import json
import os
import sys
import time
from typing import Any

from testbed import Cluster
from testbed.spec.resolver import resolve

COMMAND = "true"


def timed_run(node: Any) -> float:
    """Return the seconds that `Node.run` takes for a command."""
    start = time.perf_counter()
    node.run([COMMAND])
    return time.perf_counter() - start


def timed_ip(namespace: str) -> float:
    """Return the seconds that ``ip netns exec`` takes, started by `posix_spawn`, Python's cheapest way."""
    start = time.perf_counter()
    child = os.posix_spawnp("ip", ["ip", "netns", "exec", namespace, COMMAND], os.environ)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"ip netns exec {namespace} {COMMAND} failed: status {status}")
    return time.perf_counter() - start


def answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    keep = sys.argv[1] == "keep"
    running: Any = None
    name = ""
    try:
        for line in sys.stdin:
            command, *arguments = line.split()
            if command == "up":
                name, hosts = arguments[0], int(arguments[1])
                described = time.monotonic_ns()
                cluster = Cluster.star(hosts)
                resolved = time.monotonic_ns()
                resolve(cluster)  # up() repeats it, and its time is included there
                start = time.monotonic_ns()
                running = cluster.up(name=name, keep=keep)
                end = time.monotonic_ns()
                answer(
                    {
                        "start": start,
                        "end": end,
                        "describe": (resolved - described) / 1e9,
                        "resolve": (start - resolved) / 1e9,
                    }
                )
            elif command == "down":
                start = time.monotonic_ns()
                running.down()
                end = time.monotonic_ns()
                running = None
                answer({"start": start, "end": end})
            elif command == "run":
                node = running["n1"]
                timed_run(node)
                timed_ip(f"{name}.n1")
                pairs = [(timed_run(node), timed_ip(f"{name}.n1")) for _ in range(int(arguments[0]))]
                answer({"testbed": [pair[0] for pair in pairs], "ip": [pair[1] for pair in pairs]})
            else:
                raise ValueError(f"unknown command: {line!r}")
    finally:
        if running is not None:
            running.down()


if __name__ == "__main__":
    main()
