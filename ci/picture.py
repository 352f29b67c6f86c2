"""Draw the README's picture, light and dark: a few commands and their output in a terminal. Run it as root.

.venv/bin/python ci/picture.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from copy import copy
from pathlib import Path

from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI
from rich.text import Text

CI = Path(__file__).parent
WIDTH = 100
LIGHT = copy(DEFAULT_TERMINAL_THEME)
LIGHT.background_color = ColorTriplet(246, 248, 250)  # a page is white
THEMES = {"picture.svg": LIGHT, "picture-dark.svg": MONOKAI}
COMMANDS = (
    "testbed up star-4",
    "testbed inject n1 --loss 5% --delay 2ms",
    "testbed run star-4 random --set messages=300 --set over=3s --check",
    "testbed run emp-2001 pingpong --set sizes=4,1KiB --mode sim --profile emp-2001",
    "testbed down",
)
# Rich's own format without its web fonts, which a reader's browser would fetch.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Consolas, Menlo, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main() -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    with tempfile.TemporaryDirectory() as directory, open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        try:
            for command in COMMANDS:
                completed = subprocess.run(
                    command.split(),
                    cwd=directory,
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                if completed.returncode not in (0, 8):  # 8: other load on the machine has degraded a run
                    sys.exit(f"$ {command}: exit code {completed.returncode}")
                console.print(Text("$ ", style="dim") + Text(command, style="bold"))
                console.print(Text.from_ansi(completed.stdout))
        finally:
            if COMMANDS[-1] != command:
                subprocess.run(["testbed", "down"], env=environment, check=False)
        for name, theme in THEMES.items():
            svg = console.export_svg(
                title="testbed", theme=theme, clear=False, code_format=FORMAT, unique_id=name.partition(".")[0]
            )
            (CI / name).write_text(svg)


if __name__ == "__main__":
    main()
