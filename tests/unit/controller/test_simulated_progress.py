"""A long simulation reports progress, which does not change its results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.controller.runs import simulated_execution

STAR = Cluster.star(3, loss="1%", seed=4)
SETTINGS = {"messages": 300}
PROGRESS_LINE = re.compile(r"random on star-3, ([0-9.]+) s simulated, ([0-9,]+) events, ([0-9,]+) messages")


def test_time_events_and_messages_are_reported_and_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    silent_run = testbed.run(STAR, "random", mode="sim", settings=SETTINGS)
    monkeypatch.setattr(simulated_execution, "_PROGRESS_INTERVAL", 0.005)
    log: list[str] = []
    watched_run = testbed.run(STAR, "random", mode="sim", settings=SETTINGS, on_progress=log.append)
    matches = [match.groups() for match in map(PROGRESS_LINE.fullmatch, log) if match]
    figures = [[float(word.replace(",", "")) for word in groups] for groups in matches]
    assert len(figures) > 3
    for column in zip(*figures, strict=True):
        assert list(column) == sorted(column)
        assert column[-1] > column[0] >= 0
    assert watched_run.rows == silent_run.rows, "progress reports do not change results"


def test_a_simulation_with_progress_reports_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def computing(_comm: object, _node: object) -> None:
        while True:
            pass

    monkeypatch.setattr(simulated_execution, "_PROGRESS_INTERVAL", 0.01)
    log: list[str] = []
    with pytest.raises(simulated_execution.RunTimeoutError, match="has not ended within"):
        testbed.run(STAR, computing, mode="sim", timeout=0.2, on_progress=log.append)
    assert len(log) > 3


def test_progress_is_printed_on_standard_output_and_not_in_a_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def computing(_comm: object, _node: object) -> None:
        print("begin")  # noqa: T201
        while True:
            pass

    monkeypatch.setattr(simulated_execution, "_PROGRESS_INTERVAL", 0.01)
    with pytest.raises(simulated_execution.RunTimeoutError):
        testbed.run(STAR, computing, mode="sim", timeout=0.2, on_progress=print, output=tmp_path / "run")
    assert capsys.readouterr().out.count("s simulated") > 3
    assert "simulated" not in (tmp_path / "run" / "logs" / "n1.log").read_text()
