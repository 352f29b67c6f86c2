"""Damaged copies of JSON documents and files, and runs of the command on them."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from testbed.cli import main as command

DOCUMENTED = {*range(11)}
"""Exit codes that 'testbed --help' lists for commands that end by themselves."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 70, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\x1b[31mred", "\ud800", "\0",
    [], {}, [1], [[]], {"a": 1}, "é", -5.5, "n1", "/", "../..",
)  # fmt: skip


def with_random_change(document: Any, random: Random) -> Any:
    """Return the document with one value removed or replaced."""
    spots: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            spots.append((value, key))
            collect(value[key])

    collect(document)
    if not spots:
        return random.choice(VALUES)
    value, key = random.choice(spots)
    if random.random() < 0.2:
        del value[key]
    else:
        value[key] = random.choice(VALUES)
    return document


def damage_file(path: Path, random: Random) -> str:
    """Damage a JSON or JSON Lines file in a random way; return which."""
    data = path.read_bytes()
    kind = random.choice(["value"] * 8 + ["bytes", "cut", "nested", "directory", "FIFO", "no UTF-8", "digits", "empty"])
    match kind:
        case "value" if path.suffix == ".jsonl":
            lines = data.decode().splitlines()
            if lines:
                number = random.randrange(len(lines))
                lines[number] = json.dumps(with_random_change(json.loads(lines[number]), random))
                path.write_text("\n".join(lines) + "\n")
        case "value" if path.suffix == ".json":
            path.write_text(json.dumps(with_random_change(json.loads(data), random)))
        case "value" | "bytes":
            damaged = bytearray(data)
            for _ in range(min(len(damaged), random.randrange(1, 6))):
                damaged[random.randrange(len(damaged))] = random.randrange(256)
            path.write_bytes(damaged)
        case "cut":
            path.write_bytes(data[: random.randrange(len(data) + 1)])
        case "nested":
            byte_lines = data.split(b"\n")
            byte_lines.insert(random.randrange(len(byte_lines)), b"[" * 100_000)
            path.write_bytes(b"\n".join(byte_lines))
        case "directory":
            path.unlink()
            path.mkdir()
        case "FIFO":
            path.unlink()
            os.mkfifo(path)
        case "no UTF-8" | "digits":
            place = random.randrange(len(data) + 1)
            path.write_bytes(data[:place] + (b"\xff\xfe" if kind == "no UTF-8" else b"9" * 5_000) + data[place:])
        case _:
            path.write_bytes(b"")
    return kind


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    code: int
    text: str

    @property
    def is_clean_exit(self) -> bool:
        """Whether the command ended with a documented exit code and without a traceback."""
        return self.code in DOCUMENTED and "Traceback" not in self.text and "\x1b" not in self.text


def run_command(*arguments: str, seconds: int = 60) -> CommandOutcome:
    """Run the command in a fork of this process, which saves the start of an interpreter."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _exec_command(writer, arguments, seconds)
    os.close(writer)
    with open(reader, errors="replace") as output:
        text = output.read()
    _, status = os.waitpid(child, 0)
    return CommandOutcome(os.waitstatus_to_exitcode(status), text)


def _exec_command(writer: int, arguments: Sequence[str], seconds: int) -> None:
    code = 99
    try:
        for number, descriptor in ((0, os.open("/dev/null", os.O_RDONLY)), (1, writer), (2, writer)):
            os.dup2(descriptor, number)
        os.closerange(3, 1_000)
        sys.stdin, sys.stdout, sys.stderr = (
            sys.__stdin__,
            os.fdopen(1, "w", closefd=False),
            os.fdopen(2, "w", closefd=False),
        )
        sys.argv = ["testbed", *arguments]
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        # polars' threads and the resource tracker of a study's processes do not survive a fork.
        if arguments[0] in ("report", "study"):
            program = "from testbed.cli.main import main; main()"
            os.execv(sys.executable, [sys.executable, "-c", program, *arguments])
        command.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:  # noqa: BLE001  the test looks for tracebacks
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
