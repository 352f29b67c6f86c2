"""The floor as a contender: `floor.c`, compiled here, and driven by lines of text."""

from pathlib import Path
from typing import Any

from benchmarks.harness.compiler import COMPILE, compile_program
from benchmarks.harness.contenders import LineProcess, Timing, named_namespaces

SOURCE = Path(__file__).with_name("floor.c")


class Floor:
    """A star made by hand-packed, batched netlink messages in C, and nothing else."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        self.settings: dict[str, Any] = {"compile": " ".join(COMPILE), "process": "warm"}
        self._process = LineProcess("the floor", [str(compile_program(SOURCE, directory))])
        self._cluster = ""

    def up(self, cluster: str, hosts: int) -> Timing:
        self._cluster = cluster
        return self._process.time(f"up {cluster} {hosts}")

    def namespaces(self) -> list[str]:
        return named_namespaces(self._cluster)

    def down(self) -> Timing:
        return self._process.time("down")

    def close(self) -> None:
        self._process.close()
