"""Draws ci/pictures/top.svg, `testbed top` as it shows a real cluster with traffic and faults. Run it as root.

.venv/bin/python ci/pictures/top.py            brings the cluster up, looks at it, keeps what it saw and draws it
.venv/bin/python ci/pictures/top.py --again    draws what was seen then, after a change of how it is shown
.venv/bin/python ci/pictures/top.py --check    whether the picture is what is shown today of what was seen then

What was seen lies beside the picture, in top.json: `testbed top --json` has printed it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html import unescape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from testbed.cli.screen.frame import frame
from testbed.cli.screen.panels import PANELS
from testbed.cli.screen.view import View
from testbed.observe.live.snapshot import Snapshot

CI = Path(__file__).parent.parent
SEEN, PICTURE = Path(__file__).with_suffix(".json"), Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 112, 24
VIEW = View(panel=1, keys=("", "n3:eth0--s1:3 forward", "", "", ""))
FAULTS = (
    "load n1 n2 --rate 8mbit",
    "inject n3 --loss 5% --delay 2ms",
    "inject n4--s1 --rate 3mbit --direction s1-n4",
    "load n2 n4 --rate 3300kbit",
)
CLUSTER = "demo"


def main() -> None:
    os.environ["TZ"] = "UTC"  # the clock in the picture is nobody's own
    time.tzset()
    requested = sys.argv[1:]
    if requested == ["--check"]:
        _check()
        return
    if requested != ["--again"]:
        SEEN.write_text(json.dumps(_look(), indent=1) + "\n")
    sys.path.insert(0, str(CI))
    from picture import FORMAT  # the frame of the README's other picture

    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, height=HEIGHT, file=nowhere, force_terminal=True)
        console.print(frame(take_sample(), VIEW, WIDTH, HEIGHT))
        title = f"testbed top {CLUSTER}"
        console.save_svg(str(PICTURE), title=title, theme=DIMMED_MONOKAI, code_format=FORMAT, unique_id="top")


def _look() -> dict[str, Any]:
    """Return the snapshot of `testbed top --json`, taken under traffic."""
    _testbed("up", str(CI / "demo.toml"), "--name", CLUSTER)
    try:
        command = [*_command("exec"), "--name", CLUSTER, "n3", "--", "ping", "-q", "-i0.01", "n2"]
        with tempfile.TemporaryFile() as nowhere, subprocess.Popen(command, stdout=nowhere) as pinging:
            for fault in FAULTS:
                _testbed(*fault.split(), "--name", CLUSTER)
            seen: dict[str, Any] = json.loads(_testbed("top", CLUSTER, "--json", "--interval", "3s"))
            pinging.terminate()
        return seen
    finally:
        _testbed("down", "--name", CLUSTER)


def _command(name: str) -> list[str]:
    return [str(Path(sys.executable).with_name("testbed")), name]


def _testbed(name: str, *arguments: str) -> str:
    return subprocess.run([*_command(name), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def take_sample() -> Snapshot:
    """Return what was seen."""
    document = json.loads(SEEN.read_text())
    made = _made(Snapshot, {key: value for key, value in document.items() if key not in ("format", "kind")})
    assert isinstance(made, Snapshot)
    return made


def _made(kind: Any, value: Any) -> object:
    """Build a value of type `kind` (dataclass, tuple of them, mapping or scalar) from a JSON value."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: _made(hints[field.name], value[field.name]) for field in fields(kind)})
    if typing.get_origin(kind) is tuple:
        return tuple(_made(typing.get_args(kind)[0], item) for item in value)
    if typing.get_origin(kind) is types.UnionType and value is not None:
        return _made(typing.get_args(kind)[0], value)
    return value


def _check() -> None:
    """Compare line by line, without blanks, as Rich decides how letters are placed."""
    expected = ["".join(text for text, _ in line) for line in frame(take_sample(), VIEW, WIDTH, HEIGHT).lines]
    drawn = list(_drawn(PICTURE.read_text()))
    wrong = [pair for pair in zip(_bare(expected), _bare(drawn), strict=False) if pair[0] != pair[1]]
    if wrong or len(_bare(expected)) != len(_bare(drawn)) or len(PANELS) != len(VIEW.keys):
        sys.exit(f"{PICTURE} is not what is shown today: run {Path(__file__).name} --again\n{wrong[:3]}")


def _drawn(svg: str) -> Iterator[str]:
    """The lines of the picture."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text class="top-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines.setdefault(float(y), []).append((float(x), unescape(text)))
    for _, parts in sorted(lines.items()):
        yield "".join(text for _, text in sorted(parts))


def _bare(lines: list[str]) -> list[str]:
    return [bare for line in lines if (bare := re.sub(r"[\s▸]+", "", line))]


if __name__ == "__main__":
    main()
