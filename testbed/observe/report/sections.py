"""What the report says of a run in words and tables: its verdict with the reasons, its figures, how to repeat it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy

from testbed.observe.quantities import LABELS, cell, heading
from testbed.observe.report.columns import MOST_SHOWN, Kind
from testbed.observe.report.markup import Table, details, pairs, preformatted, table
from testbed.observe.report.telling import Told

_MARKS: Final = {"trusted": "✓", "degraded": "!", "invalid": "✕", "failed": "✕", "interrupted": "■", "unfinished": "…"}
_MEANING: Final = {
    "trusted": "What was asked for is what was measured.",
    "degraded": "Something was not quite as asked for: read the figures with these reasons in mind.",
    "invalid": "Something was not as asked for: the figures tell nothing, and are shown to find out why.",
    "failed": "A promise of the protocol was broken: see what the checks say.",
    "interrupted": "The run was interrupted: what was measured until then is shown.",
    "unfinished": "The run never ended: what was written until then is shown.",
}
_BROKE_OFF: Final = "The run broke off: what was measured until then is shown."
_BAD: Final = ("degraded", "invalid", "failed")
_MOST_REASONS: Final = 8
_MOST_ROWS: Final = 60
_FEW_ROWS: Final = 40
_ASKED: Final = ("cluster", "protocol", "mode", "profile", "codec", "nics", "dilate", "seed", "repeat")


def verdict(told: Told, place: int) -> str:
    """The card at the top. place: of the run among those in the report, from 0."""
    grade = told.grade if told.run.status in ("done", "unfinished") else told.run.status
    reasons = list(_reasons(told))
    more = len(reasons) - _MOST_REASONS
    listed = "".join(f"<li>{escape(one)}</li>" for one in reasons[:_MOST_REASONS])
    rest = f"<li>and {more:,} more, in the table of findings</li>" if more > 0 else ""
    mark = _MARKS.get(grade, "?")
    name = f"run-{place}" if told.label else "verdict-title"
    label = f'<span class="label series-{place + 1}">{escape(told.label)}</span>'
    title = f'<h3 id="{name}">{label} {escape(told.title)}</h3>' if told.label else ""
    return (
        f'<article class="card {escape(grade)}" aria-labelledby="{name}">{title}'
        f'<p class="grade"><span class="mark" aria-hidden="true">{mark}</span> {escape(grade)}</p>'
        f"<p>{escape(_BROKE_OFF if told.run.status == 'failed' else _MEANING.get(grade, ''))}</p>"
        f"{f'<ul>{listed}{rest}</ul>' if reasons else ''}{_headline(told)}"
        f'<p class="facts">{escape(_facts(told))}</p></article>'
    )


def _reasons(told: Told) -> Iterator[str]:
    if error := told.run.result.get("error"):
        yield str(error)
    yield from told.missing
    said = told.run.result.get("verdict") or {}
    for one in said.get("findings", ()):
        if one.get("grade") in _BAD:
            where = " ".join(part for part in (one.get("link"), one.get("direction")) if part)
            measured = "" if one.get("measured") is None else f": {one['measured']:.4g} {one.get('unit', '')}"
            reason = f" ({one['reason']})" if one.get("reason") else ""
            yield f"{one['what']}{' on ' + where if where else ''}{measured}{reason}: {one['grade']}"
    for one in told.run.result.get("checks") or ():
        if one.get("passed"):
            yield "Histories were looked through: nothing lost, nothing twice, in order, unchanged."
    yield from (str(note)[:1].upper() + str(note)[1:] for note in said.get("notes", ()))


def _headline(told: Told) -> str:
    """The few figures that one looks for first; none of an invalid run."""
    found: list[tuple[str, str]] = []
    for kind in () if told.grade == "invalid" else told.kinds:
        sizes = kind.column("size_bytes") if kind.numeric("size_bytes") else None
        if sizes is not None and kind.numeric("p50_ns"):
            least = float(sizes.min())
            middle = float(numpy.median(kind.column("p50_ns")[sizes == least]))
            found.append((cell("p50_ns", middle), f"median at {cell('size_bytes', round(least))}"))
        if kind.numeric("L_ns"):
            named = (
                ("L_ns", "L, latency"),
                ("o_s_ns", "o, of sending"),
                ("o_r_ns", "o, of receiving"),
                ("g_ns", "g, gap"),
            )
            found += [(cell(key, float(kind.column(key)[0])), words) for key, words in named if kind.numeric(key)]
        for key in ("bandwidth_bit_s", "aggregate_bit_s", "messages_per_s", "answered_per_s", "keys_per_s"):
            if kind.numeric(key):
                found.append((cell(key, float(kind.column(key).max())), f"{heading(key)}, at most"))
    if told.deliveries is not None and told.grade != "invalid":
        found.append((f"{told.deliveries.at.size:,}", "messages delivered"))
        found.append((cell("took_ns", float(numpy.median(told.deliveries.took))), "median of a message"))
    if told.fates:
        found.append((f"{sum(told.fates.values()):,}", "frames met a fate"))
    tiles = "".join(f"<div><dt>{escape(words)}</dt><dd>{escape(value)}</dd></div>" for value, words in found[:4])
    return f'<dl class="headline">{tiles}</dl>' if tiles else ""


def _facts(told: Told) -> str:
    asked = told.asked
    began = asked.get("began")
    parts = [
        str(asked.get("protocol", "")),
        {"sim": "in the simulation", "live": "on real frames", "dilated": "on real frames, slowed"}.get(
            str(asked.get("mode")), ""
        ),
        f"profile {_asked(asked, 'profile')}" if _asked(asked, "profile") not in ("", "ideal") else "",
        f"seed {asked['seed']}" if "seed" in asked else "",
        f"{told.of} repetitions" if told.of > 1 else "",
        f"{told.run.result['seconds']:.3g} s" if "seconds" in told.run.result else "",
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began)) if isinstance(began, int | float) else "",
    ]
    return " · ".join(part for part in parts if part)


def figures(told: Told, place: int) -> Iterator[str]:
    """The run's rows, one table for each kind."""
    if not told.kinds:
        yield '<p class="note">There are no rows: nothing was measured, or nothing was told.</p>'
    for number, kind in enumerate(told.kinds):
        rows = table(_rows(kind, told.label), f"rows-{place}-{number}")
        yield rows if kind.count <= _FEW_ROWS else details(f"{kind.count:,} rows, of the same keys", rows)


def _rows(kind: Kind, label: str) -> Table:
    keys = [key for key in kind.keys if key not in LABELS or key == "node"]
    if "repeat" in kind.keys:
        keys = ["repeat", *keys]
    shown = min(kind.count, _MOST_ROWS if kind.count > MOST_SHOWN else MOST_SHOWN)
    rows = [[cell(key, row.get(key)) for key in keys] for row in kind.first[:shown]]
    note = f"The first {shown} of {kind.count:,}; all are in rows.jsonl." if kind.count > shown else ""
    left = frozenset(place for place, key in enumerate(keys) if not kind.numeric(key))
    caption = f"Rows of {label}, {kind.count:,}" if label else f"Rows, {kind.count:,}"
    return Table(caption, [heading(key) for key in keys], rows, left, headed=False, note=note)


def evidence(told: Told, place: int) -> Iterator[str]:
    """What stands behind the verdict, and what was counted."""
    result = told.run.result
    findings = (result.get("verdict") or {}).get("findings") or []
    if findings:
        of = Table(
            "Findings: what was asked for, and what was measured",
            ["what", "where", "asked", "measured", "unit", "grade", "reason"],
            [
                [str(one.get("what")), " ".join(filter(None, (one.get("link"), one.get("direction")))) or "machine",
                 _figure(one.get("asked")), _figure(one.get("measured")), str(one.get("unit", "")), str(one.get("grade")),
                 str(one.get("reason", ""))]
                for one in findings[:MOST_SHOWN]
            ],
            frozenset({0, 1, 4, 5, 6}),
            note=f"The first {MOST_SHOWN} of {len(findings):,}." if len(findings) > MOST_SHOWN else "",
        )  # fmt: skip
        yield details(f"Findings ({len(findings):,})", table(of, f"findings-{place}"))
    if told.fates:
        rows = [
            [link, direction, cause, f"{count:,}"]
            for (link, direction, cause), count in told.fates.most_common(MOST_SHOWN)
        ]
        of = Table("Frames that met a fate, by link and cause", ["link", "direction", "cause", "frames"], rows,
                   frozenset({0, 1, 2}))  # fmt: skip
        yield details(f"Fates of frames ({sum(told.fates.values()):,})", table(of, f"fates-{place}"))
    yield from _by_node(result.get("counted"), "What NICs counted", f"counted-{place}", lambda value: cell("", value))
    yield from _by_node(
        [{node: {part: one["share"] for part, one in parts.items()} for node, parts in first.items()}
         for first in (result.get("used") or ())[:1]],
        "How busy the parts of NICs and hosts were", f"used-{place}", lambda value: f"{value:.1%}",
    )  # fmt: skip
    for name, text in told.logs.items():
        yield details(f"What {name} printed last", preformatted(text, f"log of {name}"))


def _by_node(counted: Any, title: str, name: str, said: Any) -> Iterator[str]:
    """Of the first repetition: a row for each thing that any node has, a column for each node; nothing where all is 0."""
    nodes: Mapping[str, Mapping[str, float]] = (counted or [{}])[0] or {}
    keys = dict.fromkeys(key for values in nodes.values() for key in values)
    keys = {key: None for key in keys if any(values.get(key) for values in nodes.values())}
    if not keys:
        return
    shown = list(nodes)[:MOST_SHOWN]
    rows = [[node, *(said(nodes[node].get(key, 0)) for key in keys)] for node in shown]
    note = f"The first {len(shown)} of {len(nodes):,} nodes." if len(nodes) > len(shown) else ""
    of = Table(title, ["node", *(heading(key) for key in keys)], rows, note=note)
    yield details(title, table(of, name))


def _figure(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else ""


def origin(told: Told) -> Iterator[str]:
    """What is needed to repeat it."""
    asked = told.asked
    yield f"<h3>{escape(told.label)} {escape(told.title)}</h3>"
    if command := asked.get("command"):
        yield preformatted(str(command), f"command of {told.label}")
    environment: Mapping[str, Any] = asked.get("environment") or {}
    settings: Mapping[str, Any] = asked.get("settings") or {}
    versions: Mapping[str, Any] = environment.get("versions") or {}
    yield pairs(
        [
            ("folder", str(told.run.folder)),
            ("files", ", ".join(_files(told.run.folder))),
            *(
                (key, str(asked[key]))
                for key in ("cluster", "protocol", "mode", "codec", "nics", "seed", "repeat")
                if key in asked
            ),
            ("settings", ", ".join(f"{key}={_setting(value)}" for key, value in settings.items()) or "none"),
            *((key, str(environment[key])) for key in ("kernel", "cpu", "cpus") if key in environment),
            ("python", str(environment.get("python", "")).partition(" ")[0]),
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ]
    )
    for name in ("cluster.toml", "scenario.toml"):
        file = told.run.folder / name
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            yield details(name, preformatted(text[:20_000], f"{name} of {told.label}"))


def _files(folder: Path) -> Iterator[str]:
    """What else is there to be looked at, with its size; `testbed decode` prints captures."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            yield f"{file.name} ({file.stat().st_size / 1000:,.1f} kB)"
        elif file.is_dir():
            yield f"{file.name}/"


def _asked(asked: Mapping[str, Any], key: str) -> str:
    """A profile by its name: its costs are in run.json."""
    value = asked.get(key, "")
    return str(value.get("name", "")) if isinstance(value, dict) else str(value)


def _setting(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def differences(runs: Sequence[Told]) -> list[tuple[str, list[str]]]:
    """What was asked for differently, by key."""

    def asked(told: Told) -> dict[str, str]:
        flat = {key: _asked(told.asked, key) for key in ("workload", *_ASKED)}
        return flat | {f"setting {key}": _setting(value) for key, value in (told.asked.get("settings") or {}).items()}

    every = [asked(told) for told in runs]
    keys = dict.fromkeys(key for one in every for key in one)
    return [(key, values) for key in keys if len(set(values := [one.get(key, "") for one in every])) > 1]
