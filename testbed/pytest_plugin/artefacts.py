"""What a failing test leaves: one folder with everything that says what its cluster was and what happened in it.

report.txt          why it failed, and what it printed
description.toml    the cluster as the test had it
environment.json    versions, kernel, processors, seed, and the command that runs the test again
state.json          live: the cluster with who carried which link, and what was injected when the test failed
events.jsonl        live: what was done to it and what happened to it
processes.log       live: what relay and steward have to say of themselves
verdict.txt         live: whether the network did what was asked of it, or lost frames of its own
fates.jsonl         with --pcap-on-failure, live: every fate that was not a pass
capture.pcapng      with --pcap-on-failure, live: the frames of all links
runs/N/             what each `cluster.run` left
...                 what the test itself has put into ``cluster.folder``
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from testbed.errors import TestbedError
from testbed.pytest_plugin.under_test import ClusterUnderTest, LiveCluster

FATES: Final = "fates.jsonl"
CAPTURE: Final = "capture.pcapng"
RUNS: Final = "runs"

_OF_CLUSTER: Final = ("state.json", "events.jsonl", "processes.log")


def keep(cluster: ClusterUnderTest, folder: Path, report: pytest.TestReport, verdict: Sequence[str]) -> None:
    """Fill the folder of a test that fails now; what an earlier run has left there goes. verdict: in lines."""
    from testbed.spec.writing import to_toml

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(cluster.folder, folder, dirs_exist_ok=True, ignore_dangling_symlinks=True)
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
        "testbed": version("netns-testbed"),
        "pytest": pytest.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "root": os.geteuid() == 0,
    }
