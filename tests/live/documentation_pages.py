"""A page of the documentation, executed: its files are written, its commands and programs run, and their output compared.

Of what a command prints a page shows lines; each must come, in this order, whatever the figures in it are; but those of a
simulation, and of a program, are as they stand. A line that ends in "..." is the beginning of one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
INVALID: Final = 9
DONE: Final = (0, 8, INVALID)
"""Exit codes of commands that went well; the last two: the verdict on the machine is "degraded", "invalid"."""
TRIES: Final = 3
"""How often a command runs whose verdict is "invalid", as the machine was too busy: its reader would run it again, too."""
SECONDS: Final = 100
"""How long a page may take."""

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
        """The name of the file that it is, by its first line; of another block empty."""
        named = _FILE.match(self.text)
        return named[1] if named and self.language in ("toml", "python", "yaml") else ""


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for _, language, text in _BLOCK.findall(page.read_text())]


def pages() -> list[Path]:
    """All pages that people write, the README first."""
    actual = (page for page in sorted(DOCS.rglob("*.md")) if not {"_build", "generated"} & set(page.parts))
    return [ROOT / "README.md", *actual]


def runs_something(page: Path) -> bool:
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
    """A command of a page, or a program as one, and the lines that the page shows of what it prints."""

    command: str
    shown: tuple[str, ...]


def steps(page: Path, folder: Path) -> list[Step]:
    """The commands and programs of a page in their order; programs are written to the folder. A `text` block directly
    behind a program is what that prints."""
    actual: list[Step] = []
    program = False
    for number, block in enumerate(blocks(page)):
        if block.language == "text" and program:
            actual[-1] = Step(actual[-1].command, tuple(block.text.splitlines()))
        program = block.language == "python" and not block.file
        if program:
            (folder / f"program{number}.py").write_text(block.text)
            actual.append(Step(f"python program{number}.py", ()))
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
                command, *shown = part.splitlines()
                actual.append(Step(command, tuple(shown)))
    return actual


def follow(page: Path, folder: Path, enter: Sequence[str] = ()) -> int:
    """Execute a page's commands in a folder, in one shell, and take down clusters that it leaves up. enter: command that
    runs the shell elsewhere. Returns how many commands and programs ran. Raises AssertionError for one that fails, or does
    not print what the page shows."""
    write_files(page, folder)
    todo = steps(page, folder)
    script = ["exec 2>&1"]
    for number, step in enumerate(todo):
        script += [
            f"printf '\\n{_MARK} {number}\\n'",
            f"for _ in $(seq {TRIES}); do",
            "{",
            step.command,
            "} </dev/null",
        ]
        script += ["code=$?", f"[ $code = {INVALID} ] || break", "done"]
        script += [
            f"printf '\\n{_MARK} = %s\\n' $code",
            f"case $code in {'|'.join(map(str, DONE))}) ;; *) exit ;; esac",
        ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "160", "TESTBED": str(ROOT)}
    try:
        # A file: programs that keep running in nodes would keep a pipe open.
        with (folder / ".printed").open("w+") as printed:
            shell = [*enter, "bash", "-c", "\n".join(script)]
            subprocess.run(shell, cwd=folder, env=environment, stdout=printed, timeout=SECONDS, check=False)
            printed.seek(0)
            report = printed.read().split(f"\n{_MARK} ")[1:]
    finally:
        subprocess.run(
            [*enter, "testbed", "down", "--all"], env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    outputs, codes = report[::2], report[1::2]
    for step, output, code in zip(todo, outputs, codes, strict=False):
        _check(step, output.partition("\n")[2], int(code.removeprefix("= ")))
    assert len(codes) == len(todo)
    return len(todo)


def _check(step: Step, output: str, code: int) -> None:
    reported = f"$ {step.command}\n{output}"
    assert code in DONE, f"exit code {code}\n{reported}"
    exactly = "--mode sim" in step.command or step.command.startswith("python program")
    printed = iter([_shape(line, exactly) for line in output.splitlines()])
    for line in step.shown:
        shape = _shape(line.removesuffix("..."), exactly)
        assert any(shape in other for other in printed), f"{line!r} is not in\n{reported}"


def _shape(line: str, exactly: bool) -> str:
    """A line without what differs from run to run: names that hold a time, widths, and figures with their units, but where
    they are a simulation's."""
    line = re.sub(r"\d{8}-\d{6}", "N", line)
    if not exactly:
        line = re.sub(
            r"^(verdict:|[\w-]+ is) (trusted|degraded|invalid).*", r"\1 V", line
        )  # trusted on a quiet machine
        line = re.sub(r"\d[\d.,]*\s?(ns|us|ms|s|min)?\b", "N", line)
    return " ".join(line.split())
