"""Artefacts of a failing test: a folder with the state of its cluster and its runs.

report.txt          the failure and the output
description.toml    description of the cluster
environment.json    command that repeats the test, seed, versions, kernel, processors
state.json          live: resolved layout, and the datapath of each link
events.jsonl        live: events of the cluster
processes.log       live: log of relay and supervisor
machines.json       on machines, instead of state.json and processes.log: the nodes of each machine
verdict.txt         live: the verdict on the network
capture.pcapng      live, with --pcap-on-failure: the frames of all links, with their fates
runs/N/             of each `cluster.run`: rows, logs, result; in sim, with --pcap-on-failure, frames
...                 files that the test has put into ``cluster.folder``
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from testbed.controller.runs.folders import run_environment
from testbed.pytest_plugin.cluster_network import Network
from testbed.pytest_plugin.under_test import ClusterUnderTest
from testbed.spec.toml_writer import to_toml

CAPTURE: Final = "capture.pcapng"


def keep(cluster: ClusterUnderTest, folder: Path, report: pytest.TestReport, network: Network) -> None:
    """Write the artefacts of a failed test; replaces a folder of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(cluster.folder.rglob("*")):
        if path.is_file():  # a new file that all may read, as another user may collect the artefacts
            target = folder / path.relative_to(cluster.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    sections = [f"\n--- {title} ---\n{content}" for title, content in report.sections]
    _write(folder / "report.txt", "\n".join([f"{report.nodeid} ({report.when})", report.longreprtext, *sections]))
    _write(folder / "description.toml", to_toml(cluster.description))
    _write(folder / "environment.json", json.dumps(_environment(cluster, report), indent=2))
    if cluster.mode == "live":
        cluster.keep(folder)
        _write(folder / "verdict.txt", "\n".join([network.grade.value, *network.reasons, *network.notes]) + "\n")


def _write(path: Path, text: str) -> None:
    """Write text of any origin: an error of the test may contain parts of a file name that is not UTF-8."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _environment(cluster: ClusterUnderTest, report: pytest.TestReport) -> dict[str, object]:
    return {
        "test": report.nodeid,
        "again": shlex.join([sys.executable, "-m", "pytest", report.nodeid, "--testbed-mode", cluster.mode]),
        "mode": cluster.mode,
        "seed": cluster.description.seed,
        "root": os.geteuid() == 0,
        "pytest": pytest.__version__,
        **run_environment(),
    }
