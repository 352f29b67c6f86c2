"""Report page: a self-contained HTML file.

    make_report([Path("results/runs/20261121-192009-racks-token")], Path("report.html"))

Several runs are drawn in the same plots, with their verdicts side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from testbed.errors import TestbedError, reason_of
from testbed.observe.report import sections
from testbed.observe.report.comparisons import comparisons
from testbed.observe.report.curves import curves
from testbed.observe.report.distributions import distributions
from testbed.observe.report.markup import Table, complete_page, details, section, table
from testbed.observe.report.plots import MAX_SERIES, Plot, framed
from testbed.observe.report.run_summary import RunSummary, summarize_run
from testbed.observe.report.timeline_plot import timelines
from testbed.observe.report.topology_plot import have_same_topology, topology

MAX_RUNS: int = MAX_SERIES
"""Maximum number of runs in one report."""


class UnwritableReportError(TestbedError):
    """The report cannot be written to its path."""


def make_report(
    folders: Sequence[Path],
    output: Path,
    on_step: Callable[[str], object] = lambda _: None,
    labels: Sequence[str] | None = None,
) -> int:
    """Write the report; return its size in bytes. on_step: progress callback, called with the name of each step. labels: of
    the runs; by default A, B, and so on; a single run has none.

    Raises NotFoundError if there is no run, UnsupportedError for a run of a newer version, UnwritableReportError, and
    TestbedError for a broken file.
    """
    runs = []
    for index, folder in enumerate(folders):
        on_step(f"reading {folder}")
        letter = chr(ord("A") + index) if len(folders) > 1 else ""
        runs.append(summarize_run(folder, labels[index] if labels is not None else letter))
    on_step("drawing")
    return write_page(page(runs), output)


def write_page(text: str, output: Path) -> int:
    """Write a page; return its size in bytes. Raises UnwritableReportError."""
    encoded = text.encode(errors="backslashreplace")
    try:
        if output.parent != Path():
            output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(encoded)
    except OSError as error:
        raise UnwritableReportError(f"the report cannot be written to {output}: {reason_of(error)}") from error
    return len(encoded)


def page(runs: Sequence[RunSummary]) -> str:
    """Render the report of these runs as HTML."""
    title = (
        runs[0].title if len(runs) == 1 else f"{len(runs)} runs: {', '.join(dict.fromkeys(run.title for run in runs))}"
    )
    parts = dict(_sections(runs))
    names = {"comparison": "Comparison", "cluster": "Cluster", "timeline": "Timeline", "plots": "Plots",
             "figures": "Figures", "evidence": "Evidence", "origin": "How to repeat it"}  # fmt: skip
    shown = [name for name in names if parts[name]]
    links = {name: names[name] for name in shown}
    body = "\n".join(section(name, names[name], parts[name]) for name in shown)
    heading = "Verdict" if len(runs) == 1 else "Verdicts"
    content = (
        f'<section id="verdict" aria-labelledby="verdict-title" tabindex="-1"><h2 id="verdict-title">{heading}</h2>'
        f'<div class="cards">{"".join(sections.verdict(run, index) for index, run in enumerate(runs))}</div>'
        f"{_differences(runs)}</section>\n{body}"
    )
    return complete_page(
        title, "testbed report", ("verdict", "the verdict"), links, content,
        "Made by <code>testbed report</code> from the runs' folders, and from nothing else.",
    )  # fmt: skip


def _differences(runs: Sequence[RunSummary]) -> str:
    different = sections.differences(runs)
    if not different:
        return ""
    rows = [[key, *(value or "–" for value in values)] for key, values in different]
    settings = Table("Differing settings", ["", *(run.label for run in runs)], rows, frozenset(range(len(runs) + 1)))
    return table(settings, "differences")


def _sections(runs: Sequence[RunSummary]) -> Iterator[tuple[str, list[str]]]:
    yield "cluster", [framed(plot) for plot in _pictures(runs)]
    yield "timeline", [framed(plot) for plot in timelines(runs)]
    valid = [run for run in runs if run.grade != "invalid"]  # figures of invalid runs are meaningless
    yield "comparison", list(comparisons(runs))
    yield "plots", [framed(plot) for plot in [*curves(valid), *distributions(valid)]]
    yield "figures", [_with_heading(run, _rows(run, index)) for index, run in enumerate(runs)]
    evidence = [(run, "".join(sections.evidence(run, index))) for index, run in enumerate(runs)]
    yield "evidence", [_with_heading(run, text) for run, text in evidence if text]
    yield "origin", ["".join(sections.origin(run)) for run in runs]


def _rows(run: RunSummary, index: int) -> str:
    rows = "".join(sections.figures(run, index))
    return details("Rows of an invalid run, for diagnosis", rows) if run.grade == "invalid" else rows


def _with_heading(run: RunSummary, text: str) -> str:
    return f"<h3>{escape(run.label)} {escape(run.title)}</h3>{text}" if run.label else text


def _pictures(runs: Sequence[RunSummary]) -> Iterator[Plot]:
    """Yield topology plots: a single plot if all runs have equal clusters and injections, else one for each run."""
    with_layout = [run for run in runs if run.layout is not None]
    is_same = have_same_topology([run.layout for run in with_layout if run.layout]) and all(
        run.injected == with_layout[0].injected for run in with_layout
    )
    for index, run in enumerate(with_layout[:1] if is_same else with_layout):
        if run.layout is not None:
            title = run.layout.name if is_same or not run.label else f"{run.label}: {run.layout.name}"
            yield topology(run.layout, run.injected, f"cluster-{index + 1}", title)
