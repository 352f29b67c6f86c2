"""Execute a page of the documentation: write its files, run its commands and programs, compare their output.

A page shows lines of a command's output. Each must appear, in this order; figures may differ, except in simulations and
programs. A shown line that ends in "..." is the beginning of an output line.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
INVALID: Final = 9
SUCCESS: Final = (0, 8, INVALID)
"""Exit codes of successful commands; the last two: the verdict is "degraded", "invalid"."""
MAX_ATTEMPTS: Final = 3
"""Attempts of a command whose verdict is "invalid" because the machine was too busy; a reader would repeat it, too."""
TIMEOUT: Final = 280
"""Seconds for a page; a test of pages may take a little longer."""

_BLOCK: Final = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_MARK: Final = "-- step of the page"
_FILE: Final = re.compile(r"# ([\w./-]+\.\w+)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """Name of the file that the block's first line gives; empty for a block that is no file."""
        header = _FILE.match(self.text)
        return header[1] if header and self.language in ("toml", "python", "yaml") else ""


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for _, language, text in _BLOCK.findall(page.read_text())]


def pages() -> list[Path]:
    """Return all pages that are not generated, the README first."""
    written = (page for page in sorted(DOCS.rglob("*.md")) if not {"_build", "generated"} & set(page.parts))
    return [ROOT / "README.md", *written]


def has_commands(page: Path) -> bool:
    return any(block.language in ("console", "python") and not block.file for block in blocks(page))


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows."""
    for block in blocks(page):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)


@dataclass(frozen=True, slots=True)
class Step:
    """A command or program of a page, and the lines that the page shows of its output."""

    command: str
    shown: tuple[str, ...]


def steps(page: Path, folder: Path) -> list[Step]:
    """Return the commands and programs of a page in order; write programs to the folder. A `text` block directly after
    a program is its output."""
    parsed: list[Step] = []
    is_program = False
    for number, block in enumerate(blocks(page)):
        if block.language == "text" and is_program:
            parsed[-1] = Step(parsed[-1].command, tuple(block.text.splitlines()))
        is_program = block.language == "python" and not block.file
        if is_program:
            (folder / f"program{number}.py").write_text(block.text)
            parsed.append(Step(f"python program{number}.py", ()))
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
                command, *shown = part.splitlines()
                parsed.append(Step(command, tuple(shown)))
    return parsed


def follow(page: Path, folder: Path, enter: Sequence[str] = ()) -> int:
    """Execute a page's commands in a folder, in one shell, and take down clusters that they leave up. enter: prefix of the
    shell's command line. Returns the number of commands and programs. Raises AssertionError for one that fails or whose
    output lacks a line of the page."""
    write_files(page, folder)
    page_steps = steps(page, folder)
    script = ["exec 2>&1"]
    for number, step in enumerate(page_steps):
        script += [
            f"printf '\\n{_MARK} {number}\\n'",
            f"for _ in $(seq {MAX_ATTEMPTS}); do",
            "{",
            step.command,
            "} </dev/null",
        ]
        script += ["code=$?", f"[ $code = {INVALID} ] || break", "done"]
        script += [
            f"printf '\\n{_MARK} = %s\\n' $code",
            f"case $code in {'|'.join(map(str, SUCCESS))}) ;; *) exit ;; esac",
        ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "160", "TESTBED": str(ROOT)}
    try:
        # A file: programs that keep running in nodes would keep a pipe open.
        with (folder / ".printed").open("w+") as printed:
            shell = [*enter, "bash", "-c", "\n".join(script)]
            _run_shell(shell, folder, environment, printed)
            printed.seek(0)
            report = printed.read().split(f"\n{_MARK} ")[1:]
    finally:
        subprocess.run(
            [*enter, "testbed", "down", "--all"], env=environment, capture_output=True, timeout=TIMEOUT, check=False
        )
    outputs, codes = report[::2], report[1::2]
    for step, output, code in zip(page_steps, outputs, codes, strict=False):
        _check(step, output.partition("\n")[2], int(code.removeprefix("= ")))
    assert len(codes) == len(page_steps)
    return len(page_steps)


def _run_shell(shell: Sequence[str], folder: Path, environment: Mapping[str, str], printed: IO[str]) -> None:
    """Run a shell; kill it with the command that it waits for after TIMEOUT."""
    with subprocess.Popen(shell, cwd=folder, env=environment, stdout=printed, start_new_session=True) as process:
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _check(step: Step, output: str, code: int) -> None:
    reported = f"$ {step.command}\n{output}"
    assert code in SUCCESS, f"exit code {code}\n{reported}"
    is_exact = "--mode sim" in step.command or step.command.startswith("python program")
    printed = iter([_shape(line, is_exact) for line in output.splitlines()])
    for line in step.shown:
        shape = _shape(line.removesuffix("..."), is_exact)
        assert any(shape in output_line for output_line in printed), f"{line!r} is not in\n{reported}"


def _shape(line: str, is_exact: bool) -> str:
    """Return a line without the parts that differ between runs: names with a time stamp, column widths, and, unless
    is_exact, numbers with their units."""
    line = re.sub(r"\d{8}-\d{6}", "N", line)
    if not is_exact:
        line = re.sub(
            r"^(verdict:|[\w-]+ is) (trusted|degraded|invalid).*", r"\1 V", line
        )  # trusted on a quiet machine
        line = re.sub(r"\d[\d.,]*\s?(ns|us|ms|s|min)?\b", "N", line)
    return " ".join(line.split())
