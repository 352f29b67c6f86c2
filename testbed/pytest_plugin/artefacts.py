"""Artefacts of a failing test: one folder with everything on its cluster and its runs.

report.txt          the failure and the output
description.toml    the cluster as the test had it
environment.json    the command that repeats the test, seed, versions, kernel, processors
state.json          live: the cluster with everything derived, and the datapath of each link
events.jsonl        live: events of the cluster
processes.log       live: log of relay and supervisor
machines.json       on machines, in place of state.json and processes.log: which has which nodes
verdict.txt         live: whether the network was as configured, or lost frames of its own
capture.pcapng      live, with --pcap-on-failure: the frames of all links, with their fates
runs/N/             each `cluster.run`: rows, logs, its result; simulated, with --pcap-on-failure, its frames
...                 files that the test itself has put into ``cluster.folder``
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
    """Fill the folder of a failed test, replacing an earlier run's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(cluster.folder.rglob("*")):
        if path.is_file():  # a new file, readable by all: another user may collect the artefacts
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
