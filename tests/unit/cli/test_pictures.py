"""Picture of `testbed top` in the documentation, which is drawn from a snapshot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PICTURES = Path(__file__).parents[3] / "ci" / "pictures"


def check(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)


def test_the_picture_is_up_to_date() -> None:
    completed = check(PICTURES / "top.py")
    assert completed.returncode == 0, completed.stderr


def test_an_outdated_picture_is_detected(tmp_path: Path) -> None:
    for name in ("top.py", "top.svg"):
        shutil.copy(PICTURES / name, tmp_path)
    (tmp_path / "top.json").write_text((PICTURES / "top.json").read_text().replace('"rate 3mbit"', '"rate 4mbit"'))
    completed = check(tmp_path / "top.py")
    assert completed.returncode == 1
    assert "is outdated" in completed.stderr


def test_the_picture_is_small_and_self_contained() -> None:
    text = (PICTURES / "top.svg").read_text()
    assert len(text) < 200_000
    assert "url(http" not in text
    assert "@import" not in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
