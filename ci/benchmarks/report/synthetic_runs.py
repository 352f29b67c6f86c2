"""Folders of big runs in the format of `testbed run`; their rows and messages are drawn from a seed."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from testbed.controller.runs.folders import RunFolder
from testbed.spec.layout_json import to_json
from testbed.spec.loader import load
from testbed.spec.resolver import resolve

ZERO = 48_131_413_876_001  # start of the run, in ns of the monotonic clock
SPAN = 60_000_000_000  # ns
_VERDICT = {"grade": "trusted", "seconds": 60.0, "notes": [], "findings": []}


def with_rows(path: Path, nodes: int, rows: int) -> Path:
    """Write a run with a row for each message."""
    folder = _begin(path, nodes)
    with (path / "rows.jsonl").open("w") as file:
        file.writelines(_rows(nodes, rows))
    folder.close({"status": "done", "seconds": 60.0, "verdict": _VERDICT})
    return path


def with_histories(path: Path, nodes: int, messages: int) -> Path:
    """Write a run with four events of each message, in the histories of its sender and its receiver."""
    folder = _begin(path, nodes)
    histories: list[list[tuple[int, str]]] = [[] for _ in range(nodes)]
    numbers = [0] * nodes
    rng = random.Random(7)
    for count in range(messages):
        sender = count % nodes
        receiver = (sender + 1 + rng.randrange(nodes - 1)) % nodes
        clock = ZERO + SPAN * count // messages
        duration = round(rng.lognormvariate(11, 0.6))
        for node, what, other, begin in ((sender, "send", receiver, clock), (receiver, "receive", sender, clock - 500)):
            numbers[node] += 1
            transfer = f'"n": {numbers[node]}, "peer": {other}, "context": 0, "tag": 0, "bytes": 1000, "digest": "9f3c"'
            done = "sent" if what == "send" else "received"
            for moment, event in ((begin, what), (clock + duration, done)):
                line = f'{{"clock_ns": {moment}, "what": "{event}", {transfer}}}\n'
                histories[node].append((moment, line))
    (path / "history").mkdir()
    for node, lines in enumerate(histories):
        with (path / "history" / f"n{node + 1}.jsonl").open("w") as file:
            file.writelines(line for _, line in sorted(lines))
    folder.close({"status": "done", "seconds": 60.0, "verdict": _VERDICT})
    return path


def _begin(path: Path, nodes: int) -> RunFolder:
    requested = {"kind": "workload", "cluster": f"star-{nodes}", "workload": "traffic", "protocol": "emp", "mode": "live",
             "seed": 7, "settings": {}, "began": 1_700_000_000.0}  # fmt: skip
    folder = RunFolder(path, requested, "", to_json(resolve(load(f"star-{nodes}").description)))
    for number in range(20):
        common = {"fault": f"fault[{number}]", "kind": "impair", "what": f"loss 5% on n{number + 1}"}
        begin = SPAN * (2 * number + 1) // 41
        folder.add_event("repetition begins", number=1) if not number else None
        event = {"time": 0, **common, "at": begin, "begun": begin, "in_force": begin}
        folder.add_events([{**event, "clock": ZERO + begin, "event": "fault begins"},
                       {**event, "clock": ZERO + begin + SPAN // 41, "event": "fault ends", "at": begin + SPAN // 41,
                        "with_the_run": False, "counted": {"loss": 9}, "had_effect": True}])  # fmt: skip
    return folder


def _rows(nodes: int, rows: int) -> Iterator[str]:
    rng = random.Random(7)
    for number in range(rows):
        row = {"node": f"n{number % nodes + 1}", "rank": number % nodes, "clock_ns": ZERO + SPAN * number // rows,
               "trip_ns": round(rng.lognormvariate(11, 0.6)), "moved_bytes": 1000}  # fmt: skip
        yield json.dumps(row) + "\n"
