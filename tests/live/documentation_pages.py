"""A page of the documentation, done as it stands there: its files written, its commands and programs run, and what they
print compared.

Of what a command prints a page shows lines; each must come, in this order, whatever the figures in it are; but those of a
simulation are as they stand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
DONE: Final = (0, 8, 9)
"""Exit codes of commands that went well; the last two: the verdict on the machine is "degraded", "invalid"."""
SECONDS: Final = 100
"""How long a block may take."""

_BLOCK: Final = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
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
    found = (page for page in sorted(DOCS.rglob("*.md")) if not {"_build", "generated"} & set(page.parts))
    return [ROOT / "README.md", *found]


def runs_something(page: Path) -> bool:
    return any(block.language in ("console", "python") for block in blocks(page))


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows."""
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)


def follow(page: Path, folder: Path) -> int:
    """Do what a page says in a folder, and take down what it leaves up. Returns how many commands and programs ran. Raises
    AssertionError for one that fails, or does not print what the page shows."""
    shell = _Shell(folder)
    ran = 0
    try:
        for block in blocks(page):
            if block.file:
                (folder / block.file).write_text(block.text)
            elif block.language == "python":
                (folder / "program.py").write_text(block.text)
                shell.check("python program.py", ())
                ran += 1
            elif block.language == "console":
                for command, shown in _steps(block.text):
                    shell.check(command, shown)
                    ran += 1
    finally:
        shell.run("testbed down --all")
    return ran


class _Shell:
    """Runs commands as one shell would: what one exports, the next ones have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exports: list[str] = []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "COLUMNS": "160", "TESTBED": str(ROOT)}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        script = "\n".join([*self._exports, command])
        if command.startswith("export "):
            self._exports.append(command)
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def check(self, command: str, shown: tuple[str, ...]) -> None:
        done = self.run(command)
        said = f"$ {command}\n{done.stdout}{done.stderr}"
        assert done.returncode in DONE, f"exit code {done.returncode}\n{said}"
        exactly = "--mode sim" in command
        printed = iter([_shape(line, exactly) for line in (done.stdout + done.stderr).splitlines()])
        for line in shown:
            assert any(_shape(line, exactly) in other for other in printed), f"{line!r} is not in\n{said}"


def _steps(console: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The commands of a block, and the lines that it shows of what each prints."""
    for part in re.split(r"^\$ ", console.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, tuple(shown)


def _shape(line: str, exactly: bool) -> str:
    """A line without what differs from run to run: names that hold a time, widths, and figures with their units, but where
    they are a simulation's."""
    line = re.sub(r"\d{8}-\d{6}", "N", line)
    if not exactly:
        line = re.sub(r"\d[\d.,]*\s?(ns|us|ms|s|min)?\b", "N", line)
        line = re.sub(r"^verdict: .*", "verdict:", line)  # trusted on a quiet machine
    return " ".join(line.split())
