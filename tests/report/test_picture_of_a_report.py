"""The README's picture of a report agrees with a report made today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PICTURE = Path(__file__).parents[2] / "ci" / "pictures" / "report.py"


@pytest.mark.requires("chromium")
def test_the_picture_of_a_report_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(PICTURE), "--check"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
