"""The documentation's pictures of pages show the present pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "ci" / "pictures"


@pytest.mark.requires("chromium")
@pytest.mark.parametrize("script", ["report.py", "web.py"])
def test_the_picture_shows_the_present_page(script: str) -> None:
    completed = subprocess.run(
        [sys.executable, str(PICTURES / script), "--check"], capture_output=True, text=True, timeout=110, check=False
    )
    assert completed.returncode == 0, completed.stderr
