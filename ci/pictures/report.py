"""Draws ci/pictures/report.png and report-dark.png: the report of a run, as Chromium shows it.

.venv/bin/python ci/pictures/report.py    runs it, in the simulation, and takes the pictures
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

CI = Path(__file__).parent.parent
sys.path.insert(0, str(CI))

from browser import Browser  # noqa: E402  it lies beside what is run

TESTBED = Path(sys.executable).with_name("testbed")
WIDTH, HEIGHT, ZOOM = 1040, 1560, 1.25
COLOURS = 200  # of a PNG: enough for a page with few, and a third of the size
STORM = """
[[fault]]
kind = "impair"
on = "s1--s2"
from = "1s"
to = "2s"
loss = "10%"

[[fault]]
kind = "impair"
on = "s1--s2"
from = "3s"
to = "4s"
delay = "5ms"

[[fault]]
kind = "flap"
on = "n2"
at = "5s"
for = "200ms"
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "storm.toml").write_text(STORM)
        _testbed(place, "run", "dumbbell-8", "random", "--mode", "sim", "--profile", "emp-2001", "--scenario", "storm.toml",
                 "--set", "messages=1000", "--set", "over=6s", "--check", "--output", "run")  # fmt: skip
        _testbed(place, "report", "run", "-o", "report.html")
        with Browser(place / "chromium") as browser:
            for name, dark in (("report", False), ("report-dark", True)):
                browser.open(place / "report.html", WIDTH, HEIGHT, dark=dark, zoom=ZOOM)
                browser.screenshot(place / "whole.png")
                picture = Image.open(place / "whole.png").convert("RGB").quantize(COLOURS)
                picture.save(CI / "pictures" / f"{name}.png", optimize=True)
                if browser.messages:
                    sys.exit(f"the page said: {browser.messages}")


def _testbed(place: Path, *arguments: str) -> None:
    done = subprocess.run([TESTBED, *arguments], cwd=place, check=False)
    if done.returncode not in (0, 8):
        sys.exit(f"testbed {arguments[0]}: exit code {done.returncode}")


if __name__ == "__main__":
    main()
