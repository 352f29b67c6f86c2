"""The floor as a contender: `floor.c`, compiled here, and driven by lines of text."""

from pathlib import Path
from typing import Any

from benchmarks.harness.compiler import COMPILE, compiled
from benchmarks.harness.contenders import LineProcess, Timed, named_namespaces

SOURCE = Path(__file__).with_name("floor.c")


class Floor:
    """Hand-packed, batched netlink in C and nothing else."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        self.settings: dict[str, Any] = {"compile": " ".join(COMPILE), "process": "warm"}
        self._process = LineProcess("the floor", [str(compiled(SOURCE, directory))])
        self._cluster = ""

    def up(self, cluster: str, hosts: int) -> Timed:
        self._cluster = cluster
        return self._process.timed(f"up {cluster} {hosts}")

    def namespaces(self) -> list[str]:
        return named_namespaces(self._cluster)

    def down(self) -> Timed:
        return self._process.timed("down")

    def close(self) -> None:
        self._process.close()
