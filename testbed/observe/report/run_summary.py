"""Summary of a run for the report: the contents of its folder, with a sentence for each missing file."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.cluster.faults.injections import links_of
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.observe.recorded import EVENTS, FATES, ROWS, RecordedRun, read_layout, read_run
from testbed.observe.report.columns import Kind, read_chunks, read_kinds
from testbed.observe.report.deliveries import Deliveries, read_deliveries
from testbed.observe.report.run_events import Repetition, repetitions
from testbed.runtime.journal import BrokenFileError
from testbed.spec.layout import Layout

Fates = Counter[tuple[str, str, str]]
"""Number of frames, by link, direction and cause of their fate."""

_MAX_LOG: Final = 4_000  # characters of a program's log
_MAX_LOGS: Final = 20


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run for the report. label: its name among several runs; may be empty. kinds: the kinds of its rows. repetition: the
    first one. zero: time of the clock of rows and histories at the start of the programs, ns; if it is unknown, that of the
    first measurement. injected: impairments that were injected during the run, by link. logs: ends of the logs of a run that
    has failed, by program. missing: a sentence for each missing file."""

    label: str
    record: RecordedRun
    layout: Layout | None
    kinds: tuple[Kind, ...]
    repetition: Repetition
    repetition_count: int
    deliveries: Deliveries | None
    zero: int
    fates: Fates
    injected: Mapping[str, tuple[str, ...]]
    logs: Mapping[str, str]
    missing: tuple[str, ...]

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.record.parameters

    @property
    def title(self) -> str:
        """Heading: ``pingpong on star-4``."""
        subject = self.parameters.get("workload") or self.parameters.get("kind", "run")
        return f"{subject} on {self.parameters.get('cluster', '?')}"

    @property
    def grade(self) -> str:
        """Grade of its verdict; its status if it has no verdict."""
        return str((self.record.result.get("verdict") or {}).get("grade", self.record.status))


def summarize_run(folder: Path, label: str) -> RunSummary:
    """Read a run's folder. Raises NotFoundError if there is no run, UnsupportedError for a run of a newer version,
    TestbedError for a broken file."""
    run = read_run(folder)
    try:
        return _summarize(run, label)
    except OSError as error:
        raise TestbedError(f"{folder} cannot be read: {reason_of(error)}") from error


def _summarize(run: RecordedRun, label: str) -> RunSummary:
    folder, missing = run.folder, list(_describe_missing(run))
    layout = _read_layout(folder, missing)
    events = [event for chunk in read_chunks(folder / EVENTS) for event in chunk]
    repeated = repetitions(events, virtual=run.parameters.get("mode") == "sim")
    kinds = tuple(read_kinds(folder / ROWS))
    first_folder = folder / "repeat-1" if (folder / "repeat-1").is_dir() else folder  # of the first repetition
    names = [node.name for node in layout.nodes] if layout is not None else []
    deliveries = read_deliveries(first_folder / "history", names)
    zero = repeated[0].zero
    if zero is None:
        clocks = [float(kind.column("clock_ns").min()) for kind in kinds if kind.is_numeric("clock_ns")]
        clocks += [float((deliveries.at - deliveries.took).min())] if deliveries is not None else []
        zero = int(min(clocks, default=0))
    return RunSummary(
        label, run, layout, kinds, repeated[0], len(repeated), deliveries, zero, _count_fates(folder),
        _injected(run, layout, events), _read_logs(first_folder / "logs") if run.status != "done" else {}, tuple(missing),
    )  # fmt: skip


def _describe_missing(run: RecordedRun) -> Iterator[str]:
    if not run.result:
        yield (
            "The run never ended, or was killed: without result.json there is no verdict. The report shows what exists."
        )
    if not (run.folder / ROWS).exists():
        yield f"{ROWS} is missing: the run's measurements are lost."
    if not (run.folder / EVENTS).exists():
        yield f"{EVENTS} is missing: it is unknown when faults were in force."


def _read_layout(folder: Path, missing: list[str]) -> Layout | None:
    try:
        return read_layout(folder)
    except NotFoundError:
        missing.append("cluster.json is missing: there is no picture of the cluster.")
    except BrokenFileError as error:
        missing.append(f"{error}; there is no picture of the cluster.")
    return None


def _count_fates(folder: Path) -> Fates:
    """Count the fates of all repetitions."""
    fates: Fates = Counter()
    for file in [folder / FATES, *sorted(folder.glob(f"repeat-*/{FATES}"))]:
        for records in read_chunks(file):
            fates.update(
                (str(record.get("link")), str(record.get("direction")), str(record.get("cause"))) for record in records
            )
    return fates


def _injected(
    run: RecordedRun, layout: Layout | None, events: list[Mapping[str, Any]]
) -> Mapping[str, tuple[str, ...]]:
    """Return the impairments injected during the run, by link, from the cluster's events or, without such events, from the
    targets in the scenario."""
    injected: dict[str, dict[str, None]] = {}
    for event in events:
        if event.get("event") == "inject" and not str(event.get("what")).startswith("links held for "):
            links = event.get("links")
            for link in links if isinstance(links, list) else ():
                injected.setdefault(str(link), {})[str(event.get("what"))] = None
    if layout is not None and not injected and (file := run.folder / "scenario.toml").exists():
        for description, links in _links_by_fault(file, layout, events):
            for link in links:
                injected.setdefault(link, {})[description] = None
    return {link: tuple(descriptions) for link, descriptions in injected.items()}


def _links_by_fault(file: Path, layout: Layout, events: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the description and the links of each fault. The events of a simulation do not name links, so the targets in the
    scenario's file are used."""
    try:
        faults = tomllib.loads(file.read_text(encoding="utf-8")).get("fault", [])
    except (OSError, ValueError):
        return
    descriptions = {
        str(event.get("fault")): str(event.get("what")) for event in events if event.get("event") == "fault begins"
    }
    for number, fault in enumerate(faults, 1):
        if fault.get("kind") not in ("impair", "down", "flap") or f"fault[{number}]" not in descriptions:
            continue
        for target in [fault["on"]] if isinstance(fault.get("on"), str) else fault.get("on", ()):
            try:
                yield descriptions[f"fault[{number}]"], [link.name for link in links_of(layout, target)]
            except TestbedError:
                continue


def _read_logs(folder: Path) -> Mapping[str, str]:
    """Read the ends of the programs' logs."""
    logs: dict[str, str] = {}
    for file in sorted(folder.glob("*.log")) if folder.is_dir() else ():
        text = file.read_text(encoding="utf-8", errors="replace").strip()
        if text and len(logs) < _MAX_LOGS:
            logs[file.stem] = text[-_MAX_LOG:]
    return logs
