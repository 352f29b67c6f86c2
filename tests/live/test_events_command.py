"""`testbed events`: print the events of a cluster or a run, optionally as they happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from testbed import Cluster
from testbed.cli.documents import schema_of
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.runtime import event_log

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TESTBED = str(Path(sys.executable).with_name("testbed"))


@pytest.fixture
def star(machine: object) -> Iterator[RunningCluster]:  # noqa: ARG001  (checks the machine's state at the end)
    with Cluster.star(2).up("star", keep=True) as cluster:
        yield cluster


def run_events(*arguments: str, code: int = 0) -> str:
    """Run `testbed events`; return standard output, or standard error if `code` is not 0."""
    done = subprocess.run([TESTBED, "events", *arguments], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def follow(*arguments: str) -> subprocess.Popen[str]:
    command = [TESTBED, "events", "--follow", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_each_event_is_a_line_with_kind_place_and_description(star: RunningCluster) -> None:
    star.inject("n1", loss="5%")
    star.heal()
    injected, *_, healed = [line for line in run_events().splitlines() if "replugged" not in line]
    assert " inject:      n1:eth0--s1:1: 1: loss 5% on n1, in " in injected
    assert " heal: " in healed


def test_events_can_be_filtered_by_kind_and_time(star: RunningCluster) -> None:
    star.inject("n1", loss="5%")
    star.heal()
    assert len(run_events("star", "--kind", "inject").splitlines()) == 1
    assert len(run_events("--kind", "heal", "--kind", "inject").splitlines()) == 2
    assert run_events("--kind", "relay") == ""  # relay died, relay behind, ...
    assert run_events("--since", "0s") == ""
    assert run_events("--since", "60s") == run_events()
    assert run_events("--since", "2001-01-01T00:00") == run_events()


def test_json_output_is_one_object_per_line(star: RunningCluster) -> None:
    star.inject("n2", loss="5%", delay="1ms")
    lines = [json.loads(line) for line in run_events("--json").splitlines()]
    for line in lines:
        jsonschema.validate(line, schema_of("event"))
    (injected,) = [line for line in lines if line["event"] == "inject"]
    assert injected["of"] == "star"
    assert injected["where"] == "n2:eth0--s1:2"
    assert injected["facts"]["links"] == ["n2:eth0--s1:2"]


def test_following_prints_events_and_ends_with_the_cluster(star: RunningCluster) -> None:
    star.inject("n1", loss="5%")
    with follow("--kind", "inject") as process:
        assert "loss 5% on n1" in read_line(process)
        star.inject("n2", loss="7%")
        assert "loss 7% on n2" in read_line(process)
        star.down()
        rest, errors = process.communicate(timeout=30)
        assert (rest, errors) == ("", "star has been taken down\n")
        assert process.returncode == 0


def test_following_ends_with_its_cluster_even_if_another_one_has_the_name(star: RunningCluster) -> None:
    star.inject("n1", loss="5%")
    with follow("--kind", "inject") as process:
        assert "loss 5% on n1" in read_line(process)
        process.send_signal(signal.SIGSTOP)
        star.down()
        with Cluster.star(2).up("star", keep=True) as another:
            another.inject("n1", loss="9%")
            process.send_signal(signal.SIGCONT)
            rest, errors = process.communicate(timeout=30)
        assert errors == "star has been taken down\n"
        assert "loss 9%" not in rest


def test_an_interrupt_ends_following_without_a_message(star: RunningCluster) -> None:
    star.inject("n1", loss="5%")
    with follow() as process:
        assert read_line(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")


def test_events_of_unknown_kinds_or_without_expected_fields_are_printed(star: RunningCluster) -> None:
    directory = Store().directory(star.name)
    event_log.record(directory, "inject", number=7)
    event_log.record(directory, "unknown\x1b[2J kind", phase="full")
    lines = run_events().splitlines()
    assert "number 7" in lines[0]
    assert "unknown\\x1b[2J kind: phase full" in lines[1]


# Runs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Folder of a simulated run."""
    folder = tmp_path / "run"
    command = [TESTBED, "run", "star-2", "pingpong", "--mode", "sim", "--set", "sizes=0", "--output", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


def test_the_argument_can_be_a_runs_folder(run: Path, tmp_path: Path) -> None:
    assert "repetition begins" in run_events(str(run))
    lines: list[dict[str, Any]] = [json.loads(line) for line in run_events(str(run), "--json").splitlines()]
    assert {line["of"] for line in lines} == {str(run)}
    done = subprocess.run([TESTBED, "events", "run"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == run_events(str(run))


def test_following_a_run_ends_with_it(run: Path) -> None:
    result = (run / "result.json").rename(run / "later.json")
    with follow(str(run)) as process:
        while "repetition ends" not in read_line(process):
            pass
        os.rename(result, run / "result.json")
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "the run has ended: done\n")


# Usage errors


def test_usage_errors_are_reported_with_a_suggestion(star: RunningCluster, tmp_path: Path) -> None:
    assert star.name == "star"
    assert "no cluster is named stra; up are star" in run_events("stra", code=4)
    assert "has no run.json" in run_events(str(tmp_path), code=4)
    assert "did you mean 'inject'?" in run_events("--kind", "injcet", code=2)
    assert "neither a time ago" in run_events("--since", "yesterday", code=2)
    star.down()
    assert "no cluster is up" in run_events(code=4)
