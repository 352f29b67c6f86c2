"""Artefacts of a failing test: a folder with the state of its cluster and its runs.

report.txt          the failure, and the captured output
description.toml    description of the cluster
environment.json    command that repeats the test, seed, versions, kernel, processors
state.json          live: resolved layout, and the datapath of each link
events.jsonl        live: events of the cluster
processes.log       live: log of relay and supervisor
machines.json       on machines, instead of state.json and processes.log: the nodes of each machine
verdict.txt         live: the verdict on the network
capture.pcapng      live, with --pcap-on-failure: the frames of all links, with their fates
runs/N/             the N-th `cluster.run`: rows, logs, result; in sim, with --pcap-on-failure, frames
...                 files that the test has written to ``cluster.folder``
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


def write_artefacts(cluster: ClusterUnderTest, folder: Path, report: pytest.TestReport, network: Network) -> None:
    """Write the artefacts of a failed test to a folder, which is emptied first. Raises OSError, TestbedError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(cluster.folder.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(cluster.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)  # without its mode: another user may collect the artefacts
    sections = [f"\n--- {title} ---\n{content}" for title, content in report.sections]
    _write(folder / "report.txt", "\n".join([f"{report.nodeid} ({report.when})", report.longreprtext, *sections]))
    _write(folder / "description.toml", to_toml(cluster.description))
    _write(folder / "environment.json", json.dumps(_environment(cluster, report), indent=2))
    if cluster.mode == "live":
        cluster.write_files(folder)
        _write(folder / "verdict.txt", "\n".join([network.grade.value, *network.reasons, *network.notes]) + "\n")


def _write(path: Path, text: str) -> None:
    """Write text that may have surrogates: an error of the test may quote a file name that is not UTF-8."""
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
