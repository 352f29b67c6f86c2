"""Options of `testbed machines`: pins and exclusions of `up`, the file and the end of `capture`, the seed of `run`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from testbed.cli import machine_run_commands
from testbed.cli.machine_commands import constraints_of
from testbed.errors import ConflictError, NotFoundError, TestbedError
from testbed.machines import spread
from testbed.observe import machine_captures
from testbed.observe.machine_captures import SpreadCapture
from testbed.spec.layout import Layout
from testbed.spec.machines import Machine
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

LAYOUT = resolve(Description.star(3))
MACHINES = (Machine(name="lab1"), Machine(name="lab2"))


def test_nodes_and_switches_are_pinned_and_excluded() -> None:
    constraints = constraints_of(LAYOUT, MACHINES, ["n1=lab1", "s1=lab2"], ["all=lab1", "n2=lab2"])
    assert constraints.pins == {"n1": "lab1", "s1": "lab2"}
    assert constraints.exclusions == {"n1": {"lab1"}, "n2": {"lab1", "lab2"}, "n3": {"lab1"}}


def test_invalid_pins_and_exclusions_are_rejected() -> None:
    with pytest.raises(NotFoundError, match="the file has no machine 'lab' — did you mean 'lab"):
        constraints_of(LAYOUT, MACHINES, ["n1=lab"], [])
    with pytest.raises(NotFoundError, match="has no node 'n9'"):
        constraints_of(LAYOUT, MACHINES, [], ["n9=lab1"])
    with pytest.raises(ConflictError, match="n1 is pinned to two machines: lab1 and lab2"):
        constraints_of(LAYOUT, MACHINES, ["n1=lab1", "n1=lab2"], [])
    for text in ("n1", "=lab1", ""):
        with pytest.raises(click.BadParameter, match="NODES=MACHINE"):
            constraints_of(LAYOUT, MACHINES, [text], [])


# Captures, on fake machines


@dataclass
class FakeWorker:
    """A worker of a machine with the given parts of a cluster, one for each call."""

    parts: list[bool]

    def begin(self, method: str, **_: object) -> int:
        assert method == "present"
        return 0

    def finish(self, _: int) -> object:
        is_up = self.parts.pop(0) if len(self.parts) > 1 else self.parts[0]
        return {"owners": ["n1"] if is_up else [], "tunnels": []}


@dataclass
class Capture:
    """A capture of 3 frames on machines a and b. steps: what the command did, in order. is_stopped: whether Ctrl-C was
    pressed. parts: whether machine b has its part, at each check."""

    is_stopped: bool = True
    parts: list[bool] = field(default_factory=lambda: [True])
    steps: list[str] = field(default_factory=list)

    @contextmanager
    def connect(self, _: Path) -> Iterator[dict[str, FakeWorker]]:
        self.steps.append("connect")
        yield {"a": FakeWorker([True]), "b": FakeWorker(self.parts)}

    @contextmanager
    def capturing(self, _running: object, _name: str, _target: str, path: Path) -> Iterator[SpreadCapture]:
        self.steps.append("capture")
        captured = SpreadCapture(path)
        yield captured
        path.write_bytes(b"frames")
        captured.frames["n1:eth0"] = 3
        captured.complete = True

    def stop_descriptor(self) -> int:
        self.steps.append("handle Ctrl-C")
        reading_end, writing_end = os.pipe()
        if self.is_stopped:
            os.write(writing_end, b"\n")
        return reading_end

    def run(self, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
        monkeypatch.setattr(machine_run_commands, "running_workers", self.connect)
        monkeypatch.setattr(machine_run_commands, "stop_descriptor", self.stop_descriptor)
        monkeypatch.setattr(machine_captures, "capturing", self.capturing)
        return CliRunner().invoke(machine_run_commands.capture_command, ["lab.toml", "star", "all", *options])


def test_ctrl_c_interrupts_the_connecting_of_a_capture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    capture = Capture()
    assert capture.run(monkeypatch, "-w", str(tmp_path / "x.pcapng")).exit_code == 0
    assert capture.steps == ["connect", "capture", "handle Ctrl-C"]
    assert (tmp_path / "x.pcapng").read_bytes() == b"frames"


def test_a_file_that_cannot_be_written_is_rejected_before_the_capture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    capture = Capture()
    rejection = capture.run(monkeypatch, "-w", str(tmp_path / "missing" / "x.pcapng"))
    assert isinstance(rejection.exception, TestbedError)
    assert "the capture cannot be written: No such file or directory" in str(rejection.exception)
    assert "handle Ctrl-C" not in capture.steps


def test_a_capture_can_be_standard_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = Capture().run(monkeypatch, "-w", "-")
    assert (result.exit_code, result.stdout) == (0, "frames")
    assert "3 frames: 3 at n1:eth0" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert "--json cannot go with -w -" in Capture().run(monkeypatch, "-w", "-", "--json").stderr


def test_a_capture_ends_incomplete_when_a_machine_has_lost_its_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_run_commands, "_CHECK_INTERVAL", 0.01)
    options = "-w", str(tmp_path / "x.pcapng"), "--for", "20s"
    result = Capture(is_stopped=False, parts=[True, True, False]).run(monkeypatch, *options)
    assert "warning: the cluster was taken down on machine b\n" in result.stderr
    assert "warning: the capture is incomplete: some frames or fates are missing\n" in result.stderr
    gone = Capture(is_stopped=False, parts=[True, False]).run(monkeypatch, *options, "--json")
    assert json.loads(gone.stdout)["complete"] is False


# Runs


@pytest.mark.parametrize(("seed", "seed_of_links"), [(None, 5), (9, 9)])
def test_the_links_of_a_cluster_that_a_run_brings_up_have_the_runs_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int | None, seed_of_links: int
) -> None:
    layouts: list[Layout] = []

    @contextmanager
    def bring_up(_running: object, layout: Layout, name: str, *_: object) -> Iterator[str]:
        layouts.append(layout)
        yield name

    (tmp_path / "pair.toml").write_text('name = "pair"\nseed = 5\ngenerate = { shape = "star", nodes = 2 }\n')
    monkeypatch.setattr(spread, "brought_up", bring_up)
    with machine_run_commands._cluster_up(cast(Any, {}), str(tmp_path / "pair.toml"), seed):
        assert [layout.seed for layout in layouts] == [seed_of_links]
