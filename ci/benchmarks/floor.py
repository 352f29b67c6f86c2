"""The floor as a contender: `floor.c`, compiled here, and asked by lines."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.contenders import ContenderError, LineProcess, Timed, named_namespaces

SOURCE = Path(__file__).with_name("floor.c")
COMPILE = ("cc", "-O2", "-Wall", "-Wextra")


def compiled(directory: Path) -> Path:
    """The program of `floor.c`, built in `directory`."""
    if shutil.which(COMPILE[0]) is None:
        raise ContenderError("the floor needs a C compiler: apt-get install gcc libc6-dev")
    program = directory / "floor"
    built = subprocess.run([*COMPILE, "-o", program, SOURCE], capture_output=True, text=True, check=False)
    if built.returncode:
        hint = "headers: apt-get install libc6-dev"
        raise ContenderError(f"the floor does not compile ({hint}):\n{built.stderr}")
    return program


class Floor:
    """Hand-packed, batched netlink in C and nothing else."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        self.settings: dict[str, Any] = {"compile": " ".join(COMPILE), "process": "warm"}
        self._process = LineProcess("the floor", [str(compiled(directory))])
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
