"""Draw ci/pictures/web.png and web-dark.png: `testbed top --web` of the cluster in top.json, as Chromium shows it.

.venv/bin/python ci/pictures/web.py            takes the pictures
.venv/bin/python ci/pictures/web.py --check    fails if the page's text differs from that of the pictures
.venv/bin/python ci/pictures/web.py --serve    serves the page until it is terminated

Fonts differ between machines. So the page's text is stored in web.txt, and --check compares the text instead of the
pictures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from top import stored_snapshot

from testbed.cli.web.view_server import serve
from testbed.observe.live.snapshot import Snapshot

CI = Path(__file__).parent.parent
sys.path.insert(0, str(CI))

from browser import Browser  # noqa: E402  in the parent of this script's directory

TEXT = Path(__file__).with_suffix(".txt")
WIDTH, HEIGHT = 1360, 850
COLOURS = 200  # in a PNG: enough for this page, and a third of the size
SELECTED = "n3:eth0--s1:3"
PARTS = ("totals", "topology", "details", "faults", "events", "panel")


class StoredSampler:
    """Sampler that always returns the snapshot in top.json."""

    def sample(self, *, agents: bool = True) -> Snapshot:  # noqa: ARG002  the snapshot has the agents' counters
        return stored_snapshot()


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve(StoredSampler(), 1.0, 0, Path("runs"), lambda address: print(address, flush=True))
        return
    with tempfile.TemporaryDirectory() as directory:
        command, environment = [sys.executable, __file__, "--serve"], {**os.environ, "TZ": "UTC"}
        with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                _take_pictures(server.stdout.readline().strip(), Path(directory))
            finally:
                server.terminate()


def _take_pictures(address: str, folder: Path) -> None:
    with Browser(folder / "chromium") as browser:
        for name, dark in (("web", False), ("web-dark", True)):
            text = _open(browser, address, dark=dark)
            if sys.argv[1:] == ["--check"]:
                if text != TEXT.read_text():
                    sys.exit(f"the pictures are outdated: run {Path(__file__).name}\n{text}")
                return
            browser.evaluate("document.activeElement.blur()")
            browser.screenshot(folder / "page.png")
            picture = Image.open(folder / "page.png").convert("RGB").quantize(COLOURS)
            picture.save(CI / "pictures" / f"{name}.png", optimize=True)
            if browser.messages:
                sys.exit(f"messages of the page: {browser.messages}")
            TEXT.write_text(text)


def _open(browser: Browser, address: str, *, dark: bool) -> str:
    """Open the page with a link selected; return its text."""
    browser.open(address, WIDTH, HEIGHT, dark=dark)
    browser.until("document.querySelectorAll('.node').length === 4 && document.querySelector('#panel td')")
    browser.click(f'[data-name="{SELECTED}"] .hit')
    browser.press("2", ord("2"))
    browser.until(
        "document.querySelector('#details .buttons') && document.querySelectorAll('#panel tbody tr').length === 8"
    )
    texts = [
        browser.evaluate(f"(part => part.innerText ?? part.textContent)(document.querySelector('#{part}'))")
        for part in PARTS
    ]
    return "\n".join(texts) + "\n"


if __name__ == "__main__":
    main()
