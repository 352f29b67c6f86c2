"""C programs of the benchmarks, compiled on demand."""

import shutil
import subprocess
from pathlib import Path

from benchmarks.harness.contenders import ContenderError

COMPILE = ("cc", "-O2", "-Wall", "-Wextra")


def compile_program(source: Path, directory: Path) -> Path:
    """Compile a source file in `directory`; return the program. Raises ContenderError if the compiler is missing or
    fails."""
    if shutil.which(COMPILE[0]) is None:
        raise ContenderError(f"{source.stem} needs a C compiler: apt-get install gcc libc6-dev")
    program = directory / source.stem
    built = subprocess.run([*COMPILE, "-o", program, source], capture_output=True, text=True, check=False)
    if built.returncode:
        hint = "headers: apt-get install libc6-dev"
        raise ContenderError(f"{source.name} does not compile ({hint}):\n{built.stderr}")
    return program
