"""Contents of a report's sections: a run's verdict with its reasons, figures, evidence and parameters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy

from testbed.observe.format.quantities import LABELS, format_value, heading
from testbed.observe.report.columns import MAX_SHOWN, Kind
from testbed.observe.report.pages import Part, Table
from testbed.observe.report.plots import SERIES
from testbed.observe.report.run_summary import RunSummary

_MARKS: Final = {"trusted": "✓", "degraded": "!", "invalid": "✕", "failed": "✕", "interrupted": "■", "unfinished": "…"}
_MEANINGS: Final = {
    "trusted": "The links behaved as configured.",
    "degraded": "Something deviated slightly from the configuration: read the figures with these reasons in mind.",
    "invalid": "Something deviated from the configuration: the figures are meaningless, and shown for diagnosis only.",
    "failed": "The protocol violated a guarantee: see the results of the checks.",
    "interrupted": "The run was interrupted: the measurements until then are shown.",
    "unfinished": "The run never ended: the files written until then are shown.",
}
_ABORTED: Final = "The run failed: the measurements until then are shown."
_BAD_GRADES: Final = ("degraded", "invalid", "failed")
_MAX_REASONS: Final = 8
_MAX_ROWS: Final = 60  # shown of a kind with more than MAX_SHOWN rows
_MAX_OPEN_ROWS: Final = 40  # a table with more rows is collapsed
_LOGP: Final = {"L_ns": "L, latency", "o_s_ns": "o, of sending", "o_r_ns": "o, of receiving", "g_ns": "g, gap"}
_PARAMETERS: Final = ("cluster", "protocol", "mode", "profile", "codec", "nics", "dilate", "seed", "repeat")


@dataclass(frozen=True, slots=True)
class Card:
    """Card with a run's verdict. name: name of the card's heading. series: style classes of the run's label. headline:
    titles and texts of the main figures. facts: the main parameters, in one line."""

    run: RunSummary
    name: str
    series: str
    grade: str
    mark: str
    meaning: str
    reasons: Sequence[str]
    headline: Sequence[tuple[str, str]]
    facts: str


def card(run: RunSummary, index: int) -> Card:
    """Return the card of a run's verdict. index: index of the run in the report."""
    grade = run.grade if run.record.status in ("done", "unfinished") else run.record.status
    reasons = list(_reasons(run))
    hidden_count = len(reasons) - _MAX_REASONS
    last_reason = [f"and {hidden_count:,} more, in the table of findings"] if hidden_count > 0 else []
    cycle, colour = divmod(index, len(SERIES))
    return Card(
        run, f"run-{index}" if run.label else "verdict-title", f"series-{colour + 1}{' hollow' if cycle else ''}", grade,
        _MARKS.get(grade, "?"), _ABORTED if run.record.status == "failed" else _MEANINGS.get(grade, ""),
        reasons[:_MAX_REASONS] + last_reason, _headline(run), _facts(run),
    )  # fmt: skip


def _reasons(run: RunSummary) -> Iterator[str]:
    if error := run.record.result.get("error"):
        yield str(error)
    yield from run.missing
    document = run.record.result.get("verdict") or {}
    for finding in document.get("findings", ()):
        if finding.get("grade") in _BAD_GRADES:
            where = " ".join(part for part in (finding.get("link"), finding.get("direction")) if part)
            measured = (
                "" if finding.get("measured") is None else f": {finding['measured']:.4g} {finding.get('unit', '')}"
            )
            reason = f" ({finding['reason']})" if finding.get("reason") else ""
            yield f"{finding['what']}{' on ' + where if where else ''}{measured}{reason}: {finding['grade']}"
    for check in run.record.result.get("checks") or ():
        if check.get("passed"):
            yield "Histories were checked: no message was lost, duplicated, reordered or changed."
    yield from (str(note)[:1].upper() + str(note)[1:] for note in document.get("notes", ()))


def _headline(run: RunSummary) -> list[tuple[str, str]]:
    """Return the main figures, at most four; those of an invalid run's measurements are left out."""
    tiles: list[tuple[str, str]] = []
    if run.grade != "invalid":
        for kind in run.kinds:
            tiles += _tiles(kind)
        if run.deliveries is not None:
            tiles.append(("messages delivered", f"{run.deliveries.at.size:,}"))
            tiles.append(("median of a message", format_value("took_ns", float(numpy.median(run.deliveries.took)))))
    if run.fates:
        tiles.append(("frames met a fate", f"{sum(run.fates.values()):,}"))
    return tiles[:4]


def _tiles(kind: Kind) -> Iterator[tuple[str, str]]:
    if kind.is_numeric("size_bytes") and kind.is_numeric("p50_ns"):
        sizes = kind.column("size_bytes")
        smallest = float(sizes.min())
        median = float(numpy.median(kind.column("p50_ns")[sizes == smallest]))
        yield f"median at {format_value('size_bytes', round(smallest))}", format_value("p50_ns", median)
    if kind.is_numeric("L_ns"):
        for key, title in _LOGP.items():
            if kind.is_numeric(key):
                yield title, format_value(key, float(kind.column(key)[0]))
    for key in ("bandwidth_bit_s", "aggregate_bit_s", "messages_per_s", "answered_per_s", "keys_per_s"):
        if kind.is_numeric(key):
            yield f"{heading(key)}, at most", format_value(key, float(kind.column(key).max()))


def _facts(run: RunSummary) -> str:
    parameters = run.parameters
    began = parameters.get("began")
    facts = [
        str(parameters.get("protocol", "")),
        {"sim": "in the simulation", "live": "on real frames", "dilated": "on real frames, slowed"}.get(
            str(parameters.get("mode")), ""
        ),
        f"profile {_parameter(parameters, 'profile')}"
        if _parameter(parameters, "profile") not in ("", "ideal")
        else "",
        f"seed {parameters['seed']}" if "seed" in parameters else "",
        f"{run.repetition_count} repetitions" if run.repetition_count > 1 else "",
        f"{run.record.result['seconds']:.3g} s" if "seconds" in run.record.result else "",
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began)) if isinstance(began, int | float) else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def figures(run: RunSummary, index: int) -> Iterator[Part]:
    """Yield tables of the run's rows, one for each kind."""
    for number, kind in enumerate(run.kinds):
        summary = f"{kind.count:,} rows with equal keys" if kind.count > _MAX_OPEN_ROWS else ""
        yield Part(_rows(kind, run.label), f"rows-{index}-{number}", summary)


def _rows(kind: Kind, label: str) -> Table:
    keys = [key for key in kind.keys if key not in LABELS or key == "node"]
    if "repeat" in kind.keys:
        keys = ["repeat", *keys]
    shown_count = min(kind.count, _MAX_ROWS if kind.count > MAX_SHOWN else MAX_SHOWN)
    rows = [[format_value(key, row.get(key)) for key in keys] for row in kind.first_rows[:shown_count]]
    note = f"The first {shown_count} of {kind.count:,}; all are in rows.jsonl." if kind.count > shown_count else ""
    left = frozenset(column for column, key in enumerate(keys) if not kind.is_numeric(key))
    caption = f"Rows of {label}, {kind.count:,}" if label else f"Rows, {kind.count:,}"
    return Table(caption, [heading(key) for key in keys], rows, left, headed=False, note=note)


def evidence(run: RunSummary, index: int) -> Iterator[Part]:
    """Yield the verdict's findings, the fates of frames, counters, and logs."""
    result = run.record.result
    findings = (result.get("verdict") or {}).get("findings") or []
    if findings:
        content = Table(
            "Findings: configured and measured values",
            ["what", "where", "asked", "measured", "unit", "grade", "reason"],
            [
                [str(finding.get("what")),
                 " ".join(filter(None, (finding.get("link"), finding.get("direction")))) or "machine",
                 _format_figure(finding.get("asked")), _format_figure(finding.get("measured")), str(finding.get("unit", "")),
                 str(finding.get("grade")), str(finding.get("reason", ""))]
                for finding in findings[:MAX_SHOWN]
            ],
            frozenset({0, 1, 4, 5, 6}),
            note=f"The first {MAX_SHOWN} of {len(findings):,}." if len(findings) > MAX_SHOWN else "",
        )  # fmt: skip
        yield Part(content, f"findings-{index}", f"Findings ({len(findings):,})")
    if run.fates:
        rows = [
            [link, direction, cause, f"{count:,}"]
            for (link, direction, cause), count in run.fates.most_common(MAX_SHOWN)
        ]
        content = Table("Frames that met a fate, by link and cause", ["link", "direction", "cause", "frames"], rows,
                   frozenset({0, 1, 2}))  # fmt: skip
        yield Part(content, f"fates-{index}", f"Fates of frames ({sum(run.fates.values()):,})")
    yield from _by_node(
        result.get("counted"), "Counters of NICs", f"counted-{index}", lambda value: format_value("", value)
    )
    yield from _by_node(
        [{node: {part: finding["share"] for part, finding in parts.items()} for node, parts in first.items()}
         for first in (result.get("used") or ())[:1]],
        "Utilization of the parts of NICs and hosts", f"used-{index}", lambda value: f"{value:.1%}",
    )  # fmt: skip
    yield from _by_node(
        [{f"{node}, {part}": _causes(usage) for node, parts in first.items() for part, usage in parts.items()}
         for first in (result.get("used") or ())[:1]],
        "Time of the hosts' cores by cause", f"causes-{index}", lambda value: format_value("busy_ns", value),
    )  # fmt: skip
    for name, text in run.logs.items():
        yield Part(text, f"log of {name}", f"Last output of {name}")


def _by_node(counted: Any, title: str, name: str, format_count: Any) -> Iterator[Part]:
    """Yield a table of the first repetition, with a row for each node and a column for each counter; nothing if all counters
    are 0. counted: counters by node, for each repetition."""
    nodes: Mapping[str, Mapping[str, float]] = {name: row for name, row in ((counted or [{}])[0] or {}).items() if row}
    keys = dict.fromkeys(key for values in nodes.values() for key in values)
    keys = {key: None for key in keys if any(values.get(key) for values in nodes.values())}
    if not keys:
        return
    shown_nodes = list(nodes)[:MAX_SHOWN]
    rows = [[node, *(format_count(nodes[node].get(key, 0)) for key in keys)] for node in shown_nodes]
    note = f"The first {len(shown_nodes)} of {len(nodes):,} nodes." if len(nodes) > len(shown_nodes) else ""
    yield Part(Table(title, ["node", *(heading(key) for key in keys)], rows, note=note), name, title)


def _causes(usage: Mapping[str, float]) -> Mapping[str, float]:
    """Return the nanoseconds of a core by cause; empty for other hardware."""
    return {key: value for key, value in usage.items() if key not in ("jobs", "busy_ns", "waited_ns", "share")}


def _format_figure(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else ""


def origin(run: RunSummary) -> list[tuple[str, str]]:
    """Return the parameters and versions of the run."""
    parameters = run.parameters
    environment: Mapping[str, Any] = parameters.get("environment") or {}
    settings: Mapping[str, Any] = parameters.get("settings") or {}
    versions: Mapping[str, Any] = environment.get("versions") or {}
    return [
        ("folder", str(run.record.folder)),
        ("files", ", ".join(_files(run.record.folder))),
        *(
            (key, str(parameters[key]))
            for key in ("cluster", "protocol", "mode", "codec", "nics", "seed", "repeat")
            if key in parameters
        ),
        ("settings", ", ".join(f"{key}={_format_setting(value)}" for key, value in settings.items()) or "none"),
        *((key, str(environment[key])) for key in ("kernel", "cpu", "cpus") if key in environment),
        ("python", str(environment.get("python", "")).partition(" ")[0]),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]


def descriptions(run: RunSummary) -> Iterator[Part]:
    """Yield the descriptions of the run's cluster and scenario."""
    for name in ("cluster.toml", "scenario.toml"):
        file = run.record.folder / name
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            yield Part(text[:20_000], f"{name} of {run.label}", name)


def _files(folder: Path) -> Iterator[str]:
    """Yield the folder's files with their sizes, and its subfolders."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            yield f"{file.name} ({file.stat().st_size / 1000:,.1f} kB)"
        elif file.is_dir():
            yield f"{file.name}/"


def _parameter(parameters: Mapping[str, Any], key: str) -> str:
    """Return a parameter as text; a profile by its name, since run.json contains its costs, too."""
    value = parameters.get(key, "")
    return str(value.get("name", "")) if isinstance(value, dict) else str(value)


def _format_setting(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def differences(runs: Sequence[RunSummary]) -> Table:
    """Return a table of the parameters and settings that differ between the runs."""

    def parameters(run: RunSummary) -> dict[str, str]:
        flat = {key: _parameter(run.parameters, key) for key in ("workload", *_PARAMETERS)}
        return flat | {
            f"setting {key}": _format_setting(value) for key, value in (run.parameters.get("settings") or {}).items()
        }

    all_parameters = [parameters(run) for run in runs]
    keys = dict.fromkeys(key for values_of_run in all_parameters for key in values_of_run)
    rows = [[key, *(values_of_run.get(key) or "–" for values_of_run in all_parameters)] for key in keys]
    differing_rows = [row for row in rows if len(set(row[1:])) > 1]
    left = frozenset(range(len(runs) + 1))
    return Table("Differing settings", ["", *(run.label for run in runs)], differing_rows, left)
