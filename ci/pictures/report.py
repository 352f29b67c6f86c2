"""Draw ci/pictures/report.png and report-dark.png: the report of a run, as Chromium shows it.

.venv/bin/python ci/pictures/report.py            runs a simulation and takes the pictures of its report
.venv/bin/python ci/pictures/report.py --check    fails if the report's text differs from that of the pictures

The simulation gives equal figures on every machine, but fonts differ. So the report's text is stored in report.txt, and
--check compares the text instead of the pictures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

CI = Path(__file__).parent.parent
sys.path.insert(0, str(CI))

from browser import Browser  # noqa: E402  in the parent of this script's directory

TESTBED = Path(sys.executable).with_name("testbed")
WIDTH, HEIGHT, ZOOM = 1040, 1560, 1.25
TEXT = CI / "pictures" / "report.txt"
COLOURS = 200  # in a PNG: enough for this page, and a third of the size
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
        folder = Path(directory)
        (folder / "storm.toml").write_text(STORM)
        _testbed(folder, "run", "dumbbell-8", "random", "--mode", "sim", "--profile", "emp-2001", "--scenario", "storm.toml",
                 "--set", "messages=1000", "--set", "over=6s", "--check", "--output", "run")  # fmt: skip
        _testbed(folder, "report", "run", "-o", "report.html")
        with Browser(folder / "chromium") as browser:
            text = _report_text(browser, folder / "report.html")
            if sys.argv[1:] == ["--check"]:
                if text != TEXT.read_text():
                    sys.exit(f"the pictures are outdated: run {Path(__file__).name}\n{text}")
                return
            for name, dark in (("report", False), ("report-dark", True)):
                browser.open(folder / "report.html", WIDTH, HEIGHT, dark=dark, zoom=ZOOM)
                browser.screenshot(folder / "page.png")
                picture = Image.open(folder / "page.png").convert("RGB").quantize(COLOURS)
                picture.save(CI / "pictures" / f"{name}.png", optimize=True)
                if browser.messages:
                    sys.exit(f"messages of the page: {browser.messages}")
            TEXT.write_text(text)


def _report_text(browser: Browser, report: Path) -> str:
    """Return the report's text that depends on the run alone: the rows, and the verdict without times."""
    browser.open(report, WIDTH, HEIGHT)
    text = str(browser.evaluate("document.body.innerText"))
    verdict = text[text.index("\nVerdict\n") : text.index("\nCluster\n", text.index("\nVerdict\n"))]
    rows = text[text.index("\nRows, ") : text.index("\nEvidence\n", text.index("\nRows, "))]
    lines = [line for line in (verdict + rows).splitlines() if line and not line.endswith(" UTC")]
    return "\n".join(lines) + "\n"


def _testbed(folder: Path, *arguments: str) -> None:
    completed = subprocess.run([TESTBED, *arguments], cwd=folder, check=False)
    if completed.returncode not in (0, 8):  # 8: other load on the machine has degraded the run
        sys.exit(f"testbed {arguments[0]}: exit code {completed.returncode}")


if __name__ == "__main__":
    main()
