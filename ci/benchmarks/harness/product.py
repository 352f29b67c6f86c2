"""Testbed as a contender: its Python API in a long-lived process."""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import LineProcess, Timing, named_namespaces

PROCESS = Path(__file__).with_name("product_process.py")


class Product:
    """``Cluster.star(n).up()`` and ``down()``. keep: hold namespaces by names, as the command does, instead of by
    descriptors."""

    def __init__(self, keep: bool = True) -> None:
        self.name = "testbed" if keep else "testbed with"
        self.settings: dict[str, Any] = {"process": "warm", "keep": keep}
        self._keep = keep
        self._process = LineProcess(self.name, [sys.executable, str(PROCESS), "keep" if keep else "with"])
        self._cluster = ""

    def up(self, cluster: str, hosts: int) -> Timing:
        self._cluster = cluster
        return self._process.time(f"up {cluster} {hosts}")

    def namespaces(self) -> list[str]:
        return named_namespaces(self._cluster) if self._keep else _held_by(self._process.pid)

    def down(self) -> Timing:
        return self._process.time("down")

    def compare_run(self, count: int) -> tuple[list[float], list[float]]:
        """Measure seconds of ``node.run(["true"])`` and of ``ip netns exec NODE true``, in turn, `count` of each."""
        answer = self._process.ask(f"run {count}")
        return answer["testbed"], answer["ip"]

    def close(self) -> None:
        self._process.close()


def _held_by(process: int) -> list[str]:
    """Return the network namespaces that a process and its children hold by descriptors, without our own."""
    results = {os.readlink("/proc/self/ns/net"): ""}
    for owner in [process, *_children(process)]:
        directory = Path(f"/proc/{owner}/fd")
        for entry in directory.iterdir():
            target = os.readlink(entry)
            if target.startswith("net:["):
                results.setdefault(target, str(entry))
    return sorted(path for path in results.values() if path)


def _children(process: int) -> list[int]:
    results = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            results += [int(child), *_children(int(child))]
    return results
