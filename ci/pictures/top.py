"""Draw ci/pictures/top.svg: `testbed top` of a real cluster with traffic and faults. Run it as root.

.venv/bin/python ci/pictures/top.py            brings the cluster up, stores a snapshot of it, and draws the snapshot
.venv/bin/python ci/pictures/top.py --again    draws the stored snapshot again, after a change of the screen's layout
.venv/bin/python ci/pictures/top.py --check    fails if the picture differs from the stored snapshot on the screen

The snapshot is the output of `testbed top --json`, and is stored in top.json.
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
SNAPSHOT, PICTURE = Path(__file__).with_suffix(".json"), Path(__file__).with_suffix(".svg")
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
    os.environ["TZ"] = "UTC"  # so that the clock in the picture does not depend on the machine
    time.tzset()
    requested = sys.argv[1:]
    if requested == ["--check"]:
        _check()
        return
    if requested != ["--again"]:
        SNAPSHOT.write_text(json.dumps(_take_snapshot(), indent=1) + "\n")
    sys.path.insert(0, str(CI))
    from picture import FORMAT  # as the README's other picture

    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, height=HEIGHT, file=nowhere, force_terminal=True)
        console.print(frame(stored_snapshot(), VIEW, WIDTH, HEIGHT))
        title = f"testbed top {CLUSTER}"
        console.save_svg(str(PICTURE), title=title, theme=DIMMED_MONOKAI, code_format=FORMAT, unique_id="top")


def _take_snapshot() -> dict[str, Any]:
    """Return the snapshot of `testbed top --json`, taken under traffic."""
    _testbed("up", str(CI / "demo.toml"), "--name", CLUSTER)
    try:
        command = [*_command("exec"), "--name", CLUSTER, "n3", "--", "ping", "-q", "-i0.01", "n2"]
        with tempfile.TemporaryFile() as nowhere, subprocess.Popen(command, stdout=nowhere) as pinging:
            for fault in FAULTS:
                _testbed(*fault.split(), "--name", CLUSTER)
            snapshot: dict[str, Any] = json.loads(_testbed("top", CLUSTER, "--json", "--interval", "3s"))
            pinging.terminate()
        return snapshot
    finally:
        _testbed("down", "--name", CLUSTER)


def _command(name: str) -> list[str]:
    return [str(Path(sys.executable).with_name("testbed")), name]


def _testbed(name: str, *arguments: str) -> str:
    return subprocess.run([*_command(name), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def stored_snapshot() -> Snapshot:
    """Return the snapshot in top.json."""
    document = json.loads(SNAPSHOT.read_text())
    snapshot = _from_json(Snapshot, {key: value for key, value in document.items() if key not in ("format", "kind")})
    assert isinstance(snapshot, Snapshot)
    return snapshot


def _from_json(kind: Any, value: Any) -> object:
    """Build a value of type `kind` (a dataclass, a tuple, a mapping or a scalar) from a JSON value."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: _from_json(hints[field.name], value[field.name]) for field in fields(kind)})
    if typing.get_origin(kind) is tuple:
        return tuple(_from_json(typing.get_args(kind)[0], item) for item in value)
    if typing.get_origin(kind) is types.UnionType and value is not None:
        return _from_json(typing.get_args(kind)[0], value)
    return value


def _check() -> None:
    """Compare the picture with the screen line by line, without blanks, since Rich decides where letters are placed."""
    expected = ["".join(text for text, _ in line) for line in frame(stored_snapshot(), VIEW, WIDTH, HEIGHT).lines]
    drawn = list(_lines_of(PICTURE.read_text()))
    wrong = [
        pair for pair in zip(_without_blanks(expected), _without_blanks(drawn), strict=False) if pair[0] != pair[1]
    ]
    if wrong or len(_without_blanks(expected)) != len(_without_blanks(drawn)) or len(PANELS) != len(VIEW.keys):
        sys.exit(f"{PICTURE} is outdated: run {Path(__file__).name} --again\n{wrong[:3]}")


def _lines_of(svg: str) -> Iterator[str]:
    """Yield the lines of text in the picture."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text class="top-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines.setdefault(float(y), []).append((float(x), unescape(text)))
    for _, parts in sorted(lines.items()):
        yield "".join(text for _, text in sorted(parts))


def _without_blanks(lines: list[str]) -> list[str]:
    return [stripped for line in lines if (stripped := re.sub(r"[\s▸]+", "", line))]


if __name__ == "__main__":
    main()
