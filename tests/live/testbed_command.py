"""The installed command `testbed`, run as a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTBED = str(Path(sys.executable).with_name("testbed"))


def testbed(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TESTBED, *arguments], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


testbed.__test__ = False  # type: ignore[attr-defined]  # not a test in spite of its name


def assert_error(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """Assert that the command failed with this exit code and a message with these parts, without a traceback."""
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr
    assert result.returncode == code


def output(*arguments: str) -> list[str]:
    """Run a command that must succeed; return the lines of its output."""
    done = testbed(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def tshark_field(script: Path, capture: Path, field: str) -> list[str]:
    """Return a field of each frame as tshark decodes it with the dissector."""
    arguments = ["tshark", "-n", "-X", f"lua_script:{script}", "-r", str(capture), "-T", "fields", "-e", field]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert "error" not in done.stderr.lower(), done.stderr
    return [str(int(line, 0)) if line else "" for line in done.stdout.splitlines()]
