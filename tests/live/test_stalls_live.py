"""Stalled programs in namespaces: the report with each program's line and time; and errors of firmware."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from protocols.emp import firmware as emp
from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.errors import FirmwareError
from testbed.runtime import event_log
from testbed.runtime.nodes.node_run import StuckError
from testbed.spec.elements import Nic, Node
from testbed.spec.model import Description
from tests.sim import stalled_programs

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

PATIENCE = 0.8  # seconds without progress
LONG = bool(os.environ.get("TESTBED_LONG"))
TIMEOUT = 20.0  # seconds, never reached

# Each script over EMP, and a few scripts with each other protocol and kind of NIC.
CASES = [
    *[
        (name, "emp", "inline")
        for name in stalled_programs.SCRIPTS
        if LONG or name not in stalled_programs.REDUNDANT_LIVE
    ],
    *[(name, "emp", "shared") for name in ("iprobe",)],
    *[(name, "am2", "inline") for name in ("test",)],
    *[(name, "am2", "shared") for name in ("test",)],
    *[(name, "tcp", "inline") for name in ("both receive", "iprobe")],
]


@pytest.fixture(scope="module")
def star() -> Iterator[RunningCluster]:
    with Cluster.star(2).up() as cluster:
        event_log.record(Store().directory(cluster.name), "first event")  # creates the file
        yield cluster


@pytest.mark.parametrize(("name", "protocol", "nics"), CASES)
def test_a_stalled_script_is_reported_with_its_line_and_output(
    star: RunningCluster, name: str, protocol: str, nics: str, tmp_path: Path
) -> None:
    script, sentence = stalled_programs.stalled_scripts(tmp_path, name)
    with pytest.raises(StuckError) as raised:
        testbed.run(star, script, protocol=protocol, nics=nics, patience=PATIENCE, timeout=TIMEOUT)  # type: ignore[arg-type]
    message = str(raised.value)
    assert re.search("  " + sentence.replace(r"\b.* ", ": the program ", 1), message), message
    assert re.search(
        r"; (no transfer has ended since the beginning|the last transfer ended on n[12] [\d.]+ s ago)", message
    )
    assert message.endswith("\nthe last output of the programs:\n  n1: rank 0 begins\n  n2: rank 1 begins"), message


@pytest.mark.parametrize("name", stalled_programs.AWAITED)
def test_a_stalled_coroutine_is_reported_with_its_line(star: RunningCluster, name: str) -> None:
    program, sentence = stalled_programs.AWAITED[name]
    with pytest.raises(StuckError, match=rf"n2: the program {sentence}"):
        testbed.run(star, program, patience=PATIENCE, timeout=TIMEOUT)


def test_a_polling_script_in_dilated_time_is_reported_with_its_line(tmp_path: Path) -> None:
    script, sentence = stalled_programs.stalled_scripts(tmp_path, "test")
    with pytest.raises(StuckError, match=sentence.replace(r"\b.* ", ": the program ", 1)):
        testbed.run(Cluster.star(2), script, mode="dilated", dilate=10, patience=PATIENCE, timeout=TIMEOUT)


@pytest.mark.parametrize("tag", stalled_programs.FAULTS)
def test_errors_of_firmware_end_the_run_with_node_and_time(
    star: RunningCluster, tag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(stalled_programs.OUTSIDE)
    node, sentence = stalled_programs.FAULTS[tag]
    with pytest.raises(FirmwareError, match=rf"^{node}: at (\d+) ns: (.|\n)*{sentence}") as raised:
        testbed.run(star, stalled_programs.send_a_letter, protocol="unruly", settings={"tag": tag}, timeout=TIMEOUT)
    assert 0 < raised.value.when < TIMEOUT * 1e9, "time since the programs started"


@pytest.mark.requires("interpreted")
def test_a_firmware_error_in_its_own_process_is_reported_too(
    star: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(self: object, now: int, frame: bytes) -> None:  # noqa: ARG001
        raise KeyError("no such peer")

    monkeypatch.setattr(emp.Firmware, "receive", receive)
    with pytest.raises(
        FirmwareError, match=r"^n[12]: at \d+ ns: the firmware \(.*\) has raised KeyError:\n(.|\n)*no such peer"
    ):
        testbed.run(star, "pingpong", nics="shared", timeout=TIMEOUT)


@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_frames_longer_than_the_receivers_mtu_are_reported_with_both_values(nics: str, tmp_path: Path) -> None:
    nodes = [Node(name=f"n{number}", nics=[Nic(mtu=mtu)]) for number, mtu in enumerate((9_000, 1_500), 1)]
    mixed = Description(**{**Description.star(2).model_dump(exclude_defaults=True), "nodes": nodes})
    script = tmp_path / "long.py"
    script.write_text(
        "from testbed.mpi import MPI\ncomm = MPI.COMM_WORLD\n"
        "others = [comm.Irecv(bytearray(4), 1 - comm.rank, tag=tag) for tag in range(1, 61)]\n"
        "if comm.rank == 0:\n    comm.Ssend(bytes(8000), 1)\nelse:\n    comm.Recv(bytearray(8000), 0, tag=0)\n"
    )
    with pytest.raises(StuckError) as raised:
        testbed.run(mixed, str(script), nics=nics, patience=PATIENCE, timeout=TIMEOUT)  # type: ignore[arg-type]
    message = str(raised.value)
    sentence = r"n1: NIC: \d+ frames to n2, of up to (\d+) bytes, are lost there: its MTU of 1500 allows 1514\n"
    match = re.search(sentence, message + "\n")
    assert match, message
    assert 8_000 < int(match[1]) <= 9_014
