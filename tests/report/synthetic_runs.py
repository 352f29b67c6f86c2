"""Run folders with arbitrary rows, as `testbed run` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.controller.runs.folders import RunFolder
from testbed.spec.layout import Layout
from testbed.spec.layout_json import to_json
from testbed.spec.loader import load
from testbed.spec.resolver import resolve

SIZES = (0, 64, 1024, 65536)
SECOND = 1_000_000_000


def layout(source: str = "star-4") -> Layout:
    return resolve(load(source).description)


def verdict(grade: str = "trusted", **options: object) -> dict[str, object]:
    return {"grade": grade, "seconds": 1.0, "notes": [], "findings": [], **options}


def write_run(
    path: Path,
    rows: Iterable[Mapping[str, object]] = (),
    *,
    events: Iterable[Mapping[str, object]] = (),
    cluster: str = "star-4",
    scenario: str = "",
    result: Mapping[str, object] | None = None,
    **requested: object,
) -> Path:
    """Write the folder of a completed run. result: instead of a trusted one; {} for a run that never ended."""
    document: dict[str, Any] = {
        "kind": "workload", "cluster": cluster, "workload": "pingpong", "form": "pingpong", "settings": {"count": 1000},
        "protocol": "emp", "codec": "generated", "mode": "live", "seed": 0, "repeat": 1, "began": 1_700_000_000.0,
        "command": f"testbed run {cluster} pingpong", "environment": {"kernel": "6.1", "versions": {"pyroute2": "0.9"}},
    }  # fmt: skip
    folder = RunFolder(path, {**document, **requested}, f'name = "{cluster}"\n', to_json(layout(cluster)))
    with (path / "rows.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    if scenario:
        folder.write_scenario(scenario)
    folder.add_events(list(events))
    if result is None:
        result = {"status": "done", "seconds": 1.5, "verdict": verdict()}
    if result:
        folder.close(result)
    return path


def ping_pong_rows(factor: float = 1.0, repeats: int = 1, sizes: Iterable[int] = SIZES) -> list[dict[str, object]]:
    """Return rows of ping-pong; each repetition is a little slower than the previous one."""
    rows: list[dict[str, object]] = []
    for repeat in range(repeats):
        for index, size in enumerate(sizes):
            time = round(factor * (20_000 + 10 * size + 37 * repeat))
            row: dict[str, object] = {"repeat": repeat + 1} if repeats > 1 else {}
            rows.append(row | {
                "node": "n1", "rank": 0, "clock_ns": 5 * SECOND + index, "size_bytes": size, "count": 1000,
                "min_ns": time - 500, "p50_ns": time, "p90_ns": time + 900, "p99_ns": 2 * time, "p999_ns": 3 * time,
                "cpu_ns": time // 2,
            })  # fmt: skip
    return rows


def message_rows(zero: int) -> list[dict[str, object]]:
    """Return rows of a workload that writes one for each message: 99 in a second."""
    return [
        {"node": "n1", "clock_ns": zero + number * 10**7, "trip_ns": 1000 + number, "moved_bytes": 9}
        for number in range(99)
    ]


def fault_events(what: str, begin: int, end: int | None, zero: int, name: str = "fault[1]") -> list[dict[str, object]]:
    """Return the events of a fault. begin, end: ns since the programs' start at the clock's `zero`."""
    common = {"time": 0, "fault": name, "kind": "impair", "what": what}
    begins = {**common, "clock": zero + begin, "event": "fault begins", "at": begin, "begun": begin, "in_force": begin}
    ends = {**common, "clock": zero + (end or 0), "event": "fault ends", "at": end, "with_the_run": False,
            "counted": {"frames": 100, "loss": 9}, "had_effect": True}  # fmt: skip
    return [begins] if end is None else [begins, ends]
