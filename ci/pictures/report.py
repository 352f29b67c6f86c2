"""Draws ci/pictures/report.png and report-dark.png: the report of a run, as Chromium shows it.

.venv/bin/python ci/pictures/report.py            runs it, in the simulation, and takes the pictures
.venv/bin/python ci/pictures/report.py --check    runs it, and tells whether the report still says what is in the pictures

The simulation gives the same figures everywhere, fonts do not: so what the report says of the run is kept beside the
pictures, in report.txt, and compared.
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
SAID = CI / "pictures" / "report.txt"
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
            text = _said(browser, place / "report.html")
            if sys.argv[1:] == ["--check"]:
                if text != SAID.read_text():
                    sys.exit(f"the picture is not of what the report says today: run {Path(__file__).name}\n{text}")
                return
            for name, dark in (("report", False), ("report-dark", True)):
                browser.open(place / "report.html", WIDTH, HEIGHT, dark=dark, zoom=ZOOM)
                browser.screenshot(place / "whole.png")
                picture = Image.open(place / "whole.png").convert("RGB").quantize(COLOURS)
                picture.save(CI / "pictures" / f"{name}.png", optimize=True)
                if browser.messages:
                    sys.exit(f"the page said: {browser.messages}")
            SAID.write_text(text)


def _said(browser: Browser, report: Path) -> str:
    """Return the report's text that depends on the run alone: the rows, and the verdict without times."""
    browser.open(report, WIDTH, HEIGHT)
    text = str(browser.evaluate("document.body.innerText"))
    verdict = text[text.index("\nVerdict\n") : text.index("\nCluster\n", text.index("\nVerdict\n"))]
    rows = text[text.index("\nRows, ") : text.index("\nEvidence\n", text.index("\nRows, "))]
    lines = [line for line in (verdict + rows).splitlines() if line and not line.endswith(" UTC")]
    return "\n".join(lines) + "\n"


def _testbed(place: Path, *arguments: str) -> None:
    done = subprocess.run([TESTBED, *arguments], cwd=place, check=False)
    if done.returncode not in (0, 8):
        sys.exit(f"testbed {arguments[0]}: exit code {done.returncode}")


if __name__ == "__main__":
    main()
