"""Captures on several machines: a machine that is lost takes only its own frames with it."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.cli import machine_run_commands
from testbed.fabric import pcapng
from testbed.machines.node_placement import placement_of
from testbed.machines.parts import Underlays, parts
from testbed.machines.remote_workers import WorkerLostError
from testbed.machines.spread import MachineClock
from testbed.observe import machine_captures
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

UNDERLAYS = Underlays({"a": "10.9.0.1", "b": "10.9.0.2"}, {"a": 1550, "b": 1550}, {("a", "b"): 0})
EMPTY_CAPTURE = base64.b64encode(pcapng.section_header("testbed")).decode()


class CapturingWorker:
    """A worker of a machine that captures no frames, or is lost during the capture."""

    def __init__(self, machine: str, *, is_lost: bool) -> None:
        self._machine = machine
        self._is_lost = is_lost

    def begin(self, method: str, **arguments: object) -> int:
        del method, arguments
        self._check()
        return 1

    def finish(self, number: int) -> object:
        del number
        return {"owners": ["n1"], "tunnels": []}

    def call(self, method: str, timeout: float | None = None, **arguments: object) -> object:
        del timeout, arguments
        if method == "capture":
            return 1
        self._check()
        return {"file": EMPTY_CAPTURE, "complete": True}

    def _check(self) -> None:
        if self._is_lost:
            raise WorkerLostError(self._machine, f"machine {self._machine}: the connection to its worker has ended")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> dict[str, CapturingWorker]:
    """Workers of the machines of a cluster, of which "b" is lost after the beginning of the capture."""
    layout = resolve(Description.star(2))
    workers = {machine: CapturingWorker(machine, is_lost=machine == "b") for machine in ("a", "b")}
    layouts = parts(layout, "lab", placement_of(layout, {"n1": "a", "n2": "b", "s1": "a"}), UNDERLAYS)
    state = SimpleNamespace(workers=workers, parts=layouts, layout=layout)
    monkeypatch.setattr(machine_captures, "spread_state", lambda *_: state)
    monkeypatch.setattr(machine_captures, "clock_of", lambda *_: MachineClock(0, 0))
    return workers


def test_the_frames_of_the_other_machines_are_written(workers: dict[str, CapturingWorker], tmp_path: Path) -> None:
    with machine_captures.capturing(workers, "lab", "all", tmp_path / "lab.pcapng") as captured:
        pass
    assert (tmp_path / "lab.pcapng").stat().st_size > 0
    assert captured.lost == {"b": "machine b: the connection to its worker has ended"}
    assert not captured.complete


def test_a_lost_machine_ends_the_wait_for_the_end_of_the_capture(workers: dict[str, CapturingWorker]) -> None:
    machines = iter([["a", "b"]])
    present = machine_run_commands._machines_with
    reader, writer = os.pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_run_commands, "_machines_with", lambda *both: next(machines, None) or present(*both))
        assert machine_run_commands._await_end(workers, "lab", reader, 0) == ["b"]
    os.close(reader)
    os.close(writer)
