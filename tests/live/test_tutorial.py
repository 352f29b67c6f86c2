"""The README's tutorial, done as it stands there: its files written, its commands run, what they print compared; and its
programs on NICs, as they stand there.

Of what is printed the README shows lines; each must come, in this order, whatever the figures in it are; but those of a
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

import pytest

ROOT = Path(__file__).parents[2]
DONE = (0, 8, 9)  # all went well; the last two: the verdict on the machine is "degraded", "invalid"

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of the README."""

    language: str
    text: str


def blocks(section: str) -> Iterator[Block]:
    text = (ROOT / "README.md").read_text()
    (_, rest) = text.split(f"\n## {section}", 1)
    for language, inside in re.findall(r"^```(\w+)\n(.*?)^```$", rest.split("\n## ", 1)[0], re.MULTILINE | re.DOTALL):
        yield Block(language, inside)


def steps(console: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, and the lines that it shows of what each prints."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def shape(line: str, exactly: bool) -> str:
    """A line without what differs from run to run: names that hold a time, widths, and figures with their units, but where
    they are a simulation's."""
    line = re.sub(r"\d{8}-\d{6}", "N", line)
    if not exactly:
        line = re.sub(r"\d[\d.,]*\s?(ns|us|ms|s|min)?\b", "N", line)
        line = re.sub(r"^verdict: .*", "verdict:", line)  # trusted on a quiet machine
    return " ".join(line.split())


def test_everything_in_the_tutorial_is_so(tmp_path: Path) -> None:
    node_context = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        script = ["bash", "-c", command]
        return subprocess.run(script, cwd=tmp_path, env=node_context, capture_output=True, text=True, timeout=120)

    ran = 0
    try:
        for block in blocks("Tutorial"):
            named = re.match(r"# ([\w.]+)\n", block.text)
            if named and block.language in ("toml", "python"):
                (tmp_path / named[1]).write_text(block.text)
            for command, shown in steps(block.text) if block.language == "console" else ():
                ran += 1
                done = run(command)
                said = f"$ {command}\n{done.stdout}{done.stderr}"
                assert done.returncode in DONE, said
                exactly = "--mode sim" in command
                printed = iter([shape(line, exactly) for line in (done.stdout + done.stderr).splitlines()])
                for line in shown:
                    assert any(shape(line, exactly) in other for other in printed), f"{line!r} is not in\n{said}"
    finally:
        run("testbed down --all")
    assert ran >= 15


def test_the_programs_on_nics_run_simulated_and_live(tmp_path: Path) -> None:
    programs = [block.text for block in blocks("NICs with firmware") if block.language == "python"]
    printed = []
    for text in programs:
        (tmp_path / "program.py").write_text(text)
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    emp, am2 = printed
    assert emp[0].startswith("{'from': 'n1'} after ")
    assert emp[1] == "{'from': 'n1'}"
    assert am2 == ["285", str({f"n{number}": 285 for number in range(1, 5)})]
