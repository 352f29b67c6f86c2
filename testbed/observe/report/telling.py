"""A run as the report tells of it: all that its folder holds, and a sentence for whatever should be there and is not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.errors import TestbedError, reason_of
from testbed.observe.recorded import EVENTS, FATES, ROWS, Recorded, recorded
from testbed.observe.report.columns import Kind, read_chunks, read_kinds
from testbed.observe.report.deliveries import Deliveries, read_deliveries
from testbed.observe.report.happenings import Repetition, repetitions
from testbed.spec.layout import Layout
from testbed.spec.layout_json import from_json

Fates = Counter[tuple[str, str, str]]
"""How many frames met it, by link, direction and cause."""

_LOG: Final = 4_000  # characters of what a program has printed
_MOST_LOGS: Final = 20


@dataclass(frozen=True, slots=True)
class Told:
    """label: what it is called beside other runs. missing: sentences. zero: the clock when its programs began, or of the
    first that is known, in ns. injected: links that scenario or cluster impaired while it ran."""

    label: str
    run: Recorded
    layout: Layout | None
    kinds: tuple[Kind, ...]
    repetition: Repetition
    of: int
    deliveries: Deliveries | None
    zero: int
    fates: Fates
    injected: Mapping[str, tuple[str, ...]]
    logs: Mapping[str, str]
    missing: tuple[str, ...]

    @property
    def asked(self) -> Mapping[str, Any]:
        return self.run.asked

    @property
    def title(self) -> str:
        """``pingpong on star-4``."""
        return f"{self.asked.get('workload') or self.asked.get('kind', 'run')} on {self.asked.get('cluster', '?')}"

    @property
    def grade(self) -> str:
        """Of its verdict; how it ended where there is none."""
        return str((self.run.result.get("verdict") or {}).get("grade", self.run.status))


def tell(folder: Path, label: str) -> Told:
    """Raises NotFoundError where there is no run, UnsupportedError for one of a newer version, TestbedError for a broken
    file."""
    run = recorded(folder)
    try:
        return _told(run, label)
    except OSError as error:
        raise TestbedError(f"{folder} cannot be read: {reason_of(error)}") from error


def _told(run: Recorded, label: str) -> Told:
    folder, missing = run.folder, list(_missing(run))
    layout = _layout(folder / "cluster.json", missing)
    events = [event for some in read_chunks(folder / EVENTS) for event in some]
    found = repetitions(events, virtual=run.asked.get("mode") == "sim")
    kinds = tuple(read_kinds(folder / ROWS))
    part = folder / "repeat-1" if (folder / "repeat-1").is_dir() else folder
    names = [node.name for node in layout.nodes] if layout is not None else []
    deliveries = read_deliveries(part / "history", names)
    zero = found[0].zero
    if zero is None:
        clocks = [float(kind.column("clock_ns").min()) for kind in kinds if kind.numeric("clock_ns")]
        clocks += [float((deliveries.at - deliveries.took).min())] if deliveries is not None else []
        zero = int(min(clocks, default=0))
    return Told(
        label, run, layout, kinds, found[0], len(found), deliveries, zero, _fates(folder), _injected(run, layout, events),
        _logs(part / "logs") if run.status != "done" else {}, tuple(missing),
    )  # fmt: skip


def _missing(run: Recorded) -> Iterator[str]:
    if not run.result:
        yield "The run never ended, or was killed: there is no result.json, hence no verdict. What was written is here."
    if not (run.folder / ROWS).exists():
        yield f"{ROWS} is missing: what the run measured is lost."
    if not (run.folder / EVENTS).exists():
        yield f"{EVENTS} is missing: when faults were in force is not known."


def _layout(file: Path, missing: list[str]) -> Layout | None:
    try:
        return from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        missing.append("cluster.json is missing: there is no picture of the cluster.")
    except (ValueError, KeyError, TypeError, IndexError):
        missing.append("cluster.json cannot be understood: there is no picture of the cluster.")
    return None


def _fates(folder: Path) -> Fates:
    """Of all repetitions."""
    found: Fates = Counter()
    for file in [folder / FATES, *sorted(folder.glob(f"repeat-*/{FATES}"))]:
        for some in read_chunks(file):
            found.update((str(one.get("link")), str(one.get("direction")), str(one.get("cause"))) for one in some)
    return found


def _injected(run: Recorded, layout: Layout | None, events: list[Mapping[str, Any]]) -> Mapping[str, tuple[str, ...]]:
    """What was put on links while the run went on, by link: as the cluster's own events say, or the scenario's targets."""
    found: dict[str, dict[str, None]] = {}
    for event in events:
        if event.get("event") == "inject" and not str(event.get("what")).startswith("links held for "):
            for link in event.get("links", ()):
                found.setdefault(str(link), {})[str(event["what"])] = None
    if layout is not None and not found and (file := run.folder / "scenario.toml").exists():
        for what, links in _by_scenario(file, layout, events):
            for link in links:
                found.setdefault(link, {})[what] = None
    return {link: tuple(what) for link, what in found.items()}


def _by_scenario(file: Path, layout: Layout, events: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """In the simulation nobody tells which links a fault is on but its words: ``loss 10% on n1``."""
    import tomllib

    from testbed.cluster.injections import links_of

    try:
        faults = tomllib.loads(file.read_text(encoding="utf-8")).get("fault", [])
    except (OSError, ValueError):
        return
    what = {str(event.get("fault")): str(event.get("what")) for event in events if event.get("event") == "fault begins"}
    for number, fault in enumerate(faults, 1):
        if fault.get("kind") not in ("impair", "down", "flap") or f"fault[{number}]" not in what:
            continue
        for target in [fault["on"]] if isinstance(fault.get("on"), str) else fault.get("on", ()):
            try:
                yield what[f"fault[{number}]"], [link.name for link in links_of(layout, target)]
            except TestbedError:
                continue


def _logs(folder: Path) -> Mapping[str, str]:
    """The ends of what programs printed."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.log")) if folder.is_dir() else ():
        text = file.read_text(encoding="utf-8", errors="replace").strip()
        if text and len(found) < _MOST_LOGS:
            found[file.stem] = text[-_LOG:]
    return found
