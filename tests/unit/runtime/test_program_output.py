"""Descriptions of the ends of programs."""

from __future__ import annotations

import signal
from pathlib import Path

from testbed.runtime.nodes.program_output import describe_death


def test_the_description_of_a_crash_has_its_line_and_not_the_loaded_modules(tmp_path: Path) -> None:
    """Python lists all extension modules behind the traceback: the compiled build has more than a hundred."""
    modules = ", ".join(f"testbed.module{number}" for number in range(170))
    trace = 'Fatal Python error: Segmentation fault\n\n  File "script.py", line 4 in <module>'
    (tmp_path / "n2.log").write_text(f"{trace}\n\nExtension modules: {modules} (total: 170)\n")
    description = describe_death(signal.SIGSEGV, tmp_path, "n2")
    assert description.startswith("n2: its process was ended by signal 11:\nFatal Python error")
    assert description.endswith('File "script.py", line 4 in <module>')


def test_the_description_of_a_death_has_the_end_of_a_long_output(tmp_path: Path) -> None:
    (tmp_path / "n1.log").write_text("".join(f"line {number}\n" for number in range(10_000)))
    description = describe_death(1 << 8, tmp_path, "n1")
    assert description.startswith("n1: its process ended with code 1:\n")
    assert description.endswith("line 9999")
    assert len(description) < 2_100
