"""What a failing test leaves: one folder with everything that says what its cluster was and what happened in it.

report.txt          why it failed, and what it printed
description.toml    the cluster as the test had it
environment.json    the command that runs the test again, seed, versions, kernel, processors
state.json          live: the cluster with everything decided, and who carried which link
events.jsonl        live: what was done to it and what happened to it
processes.log       live: what relay and steward have to say of themselves
verdict.txt         live: whether the network did what was asked of it, or lost frames of its own
capture.pcapng      live, with --pcap-on-failure: the frames of all links, with what befell them
runs/N/             what each `cluster.run` left: rows, logs, its result; simulated, with --pcap-on-failure, its frames
...                 what the test itself has put into ``cluster.folder``
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from testbed.controller.surroundings import surroundings
from testbed.errors import TestbedError
from testbed.pytest_plugin.under_test import ClusterUnderTest, LiveCluster

CAPTURE: Final = "capture.pcapng"

_OF_CLUSTER: Final = ("state.json", "events.jsonl", "processes.log")


def keep(cluster: ClusterUnderTest, folder: Path, report: pytest.TestReport, verdict: Sequence[str]) -> None:
    """Fill the folder of a test that fails now; what an earlier run has left there goes. verdict: in lines."""
    from testbed.spec.writing import to_toml

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(cluster.folder.rglob("*")):
        if path.is_file():  # anew, for everybody to read: somebody else may collect what root's tests leave
            target = folder / path.relative_to(cluster.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    sections = [f"\n--- {title} ---\n{content}" for title, content in report.sections]
    (folder / "report.txt").write_text("\n".join([f"{report.nodeid} ({report.when})", report.longreprtext, *sections]))
    (folder / "description.toml").write_text(to_toml(cluster.description))
    (folder / "environment.json").write_text(json.dumps(_environment(cluster, report), indent=2))
    if isinstance(cluster, LiveCluster):
        for name in _OF_CLUSTER:
            if (cluster.directory / name).is_file():
                shutil.copyfile(cluster.directory / name, folder / name)
        (folder / "verdict.txt").write_text("\n".join(verdict) + "\n")


def verdict_in_words(cluster: LiveCluster) -> list[str]:
    """The verdict of the network since the test began: its grade, and a line for everything that was not as asked."""
    from testbed.controller.checking import verdict
    from testbed.controller.verdicts import Grade

    try:
        found = verdict(cluster.name, cluster.begun)
    except TestbedError as error:
        return [f"not known: {error}"]
    lines = [found.grade.value]
    for one in found.findings:
        if one.grade not in (Grade.TRUSTED, Grade.UNDECIDED):
            place = " ".join(part for part in (one.link, one.direction) if part) or "the machine"
            measured = "" if one.measured is None else f" {one.measured:.6g} {one.unit}"
            lines.append(f"{one.grade.value}: {one.what} on {place}:{measured} {one.reason}".rstrip())
    return [*lines, *found.notes]


def _environment(cluster: ClusterUnderTest, report: pytest.TestReport) -> dict[str, object]:
    return {
        "test": report.nodeid,
        "again": f"{sys.executable} -m pytest '{report.nodeid}' --testbed-mode {cluster.mode}",
        "mode": cluster.mode,
        "seed": cluster.description.seed,
        "root": os.geteuid() == 0,
        "pytest": pytest.__version__,
        **surroundings(),
    }
