"""Report of runs: a self-contained HTML file, made from the runs' folders.

    make_report([Path("results/runs/20261121-192009-racks-token")], Path("report.html"))

With several runs, each plot shows all of them, and their verdicts are side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from testbed.observe.report import sections
from testbed.observe.report.comparisons import comparisons
from testbed.observe.report.curves import curves
from testbed.observe.report.distributions import distributions
from testbed.observe.report.pages import render, write_page
from testbed.observe.report.plots import MAX_SERIES, Plot
from testbed.observe.report.run_summary import RunSummary, summarize_run
from testbed.observe.report.timeline_plot import timelines
from testbed.observe.report.topology_plot import have_same_topology, topology

MAX_RUNS: int = MAX_SERIES
"""Maximum number of runs in one report."""

_SECTIONS: Final = {
    "comparison": "Comparison", "cluster": "Cluster", "timeline": "Timeline", "plots": "Plots", "figures": "Figures",
    "evidence": "Evidence", "origin": "How to repeat it",
}  # fmt: skip


def make_report(
    folders: Sequence[Path],
    output: Path,
    on_step: Callable[[str], object] = lambda _: None,
    labels: Sequence[str] | None = None,
) -> int:
    """Write the report; return its size in bytes. on_step: called with the name of each step when it begins. labels: labels
    of the runs; None: A, B, and so on, but none for a single run.

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


def page(runs: Sequence[RunSummary]) -> str:
    """Render the report of these runs as HTML."""
    valid = [run for run in runs if run.grade != "invalid"]  # the figures of an invalid run are meaningless
    plots = {
        "cluster": list(_pictures(runs)),
        "timeline": timelines(runs),
        "plots": [*curves(valid), *distributions(valid)],
    }
    evidence = [(run, list(sections.evidence(run, index))) for index, run in enumerate(runs)]
    parts = {
        "comparison": list(comparisons(runs)),
        "figures": [(run, list(sections.figures(run, index))) for index, run in enumerate(runs)],
        "evidence": [(run, parts) for run, parts in evidence if parts],
        "origin": [(run, sections.origin(run), list(sections.descriptions(run))) for run in runs],
    }
    filled = plots | parts
    return render(
        "run_report.html",
        title=runs[0].title if len(runs) == 1
        else f"{len(runs)} runs: {', '.join(dict.fromkeys(run.title for run in runs))}",
        links={name: title for name, title in _SECTIONS.items() if filled[name]},
        cards=[sections.card(run, index) for index, run in enumerate(runs)],
        differences=sections.differences(runs), plots=plots, **parts,
    )  # fmt: skip


def _pictures(runs: Sequence[RunSummary]) -> Iterator[Plot]:
    """Yield topology plots: a single plot if all runs have equal clusters and injected impairments, otherwise one for each
    run."""
    with_layout = [run for run in runs if run.layout is not None]
    is_same = have_same_topology([run.layout for run in with_layout if run.layout]) and all(
        run.injected == with_layout[0].injected for run in with_layout
    )
    for index, run in enumerate(with_layout[:1] if is_same else with_layout):
        if run.layout is not None:
            title = run.layout.name if is_same or not run.label else f"{run.label}: {run.layout.name}"
            yield topology(run.layout, run.injected, f"cluster-{index + 1}", title)
