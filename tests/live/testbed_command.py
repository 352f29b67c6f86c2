"""The installed command `testbed`, run as a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTBED = str(Path(sys.executable).with_name("testbed"))


def testbed(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TESTBED, *arguments], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


testbed.__test__ = False  # type: ignore[attr-defined]  # its name begins as those of tests do


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The command ended with this code and a message with these words, without a traceback."""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert result.returncode == code


def output(*arguments: str) -> list[str]:
    """Lines of a command that succeeds."""
    done = testbed(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def by_tshark(script: Path, capture: Path, field: str) -> list[str]:
    """A field of each frame, as Wireshark's own program finds it by the dissector."""
    arguments = ["tshark", "-n", "-X", f"lua_script:{script}", "-r", str(capture), "-T", "fields", "-e", field]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert "error" not in done.stderr.lower(), done.stderr
    return [str(int(line, 0)) if line else "" for line in done.stdout.splitlines()]
