"""Decoding of EMP frames during a capture on a running cluster's link, each with its fate."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from protocols.emp import codec
from protocols.emp.host import Endpoint, plug
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.sim.scapy_captures import read_capture

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

TIMEOUT = 100.0  # seconds
COUNT, SIZE = 40, 3_000


async def transfer(endpoint: Endpoint, node: ProgramNode) -> None:
    """Send COUNT messages from n1 to n2."""
    for number in range(COUNT):
        if node.number:
            await endpoint.post_receive(0, number, bytearray(SIZE))
        else:
            await endpoint.send(1, number, bytes([number]) * SIZE)


def decode(*arguments: object) -> list[str]:
    program = "from testbed.cli.main import main; main()"
    return [sys.executable, "-c", program, "decode", *map(str, arguments)]


def documents(*arguments: object) -> list[dict[str, Any]]:
    done = subprocess.run(decode(*arguments, "--json"), capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_live_capture_of_emp_is_followed_and_shows_the_fate_of_each_frame(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    path.touch()
    with subprocess.Popen(decode(path, "--follow"), stdout=subprocess.PIPE, text=True) as follower:
        with Cluster.back_to_back(loss="10%").up(datapath="relay") as cluster:
            programs = {node.name: transfer for node in cluster}
            with cluster.capture("n1", path) as capture, agents(cluster, plug(), codec.ETHERTYPE, programs) as run:
                run.wait(TIMEOUT)
            nics = {node.layout.nics[0].mac: f"{node.name}:eth0" for node in cluster}
        captured = read_capture(path)
        assert follower.stdout is not None
        followed = [follower.stdout.readline() for _ in captured]
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 0
        assert follower.stdout.read() == ""
    lost = capture.result.fates["loss"]
    assert lost > 0
    assert sum("[dropped by loss, frame " in line for line in followed) == lost
    # The output equals the file's content, with NICs by name.
    document_list = documents(path)
    assert [(document["interface"], document["time"], document["fate"]) for document in document_list] == [
        (end, when, met) for end, when, _, met in captured
    ]
    for line, (end, _, frame, met) in zip(followed, captured, strict=True):
        nic_names = " > ".join(nics[frame[begin : begin + 6].hex(":")] for begin in (6, 0))
        assert f" {end} " in line
        assert f"{nic_names} EMP {['MESSAGE', 'DATA', 'ACK'][frame[15] - 1]} " in line
        assert line.endswith(f"[{met}]\n") if met else "[" not in line
    forward = [document for document in document_list if document["direction"] == "forward"]
    assert {entry["fields"]["eth.src"] for entry in forward} == {
        next(mac for mac, nic in nics.items() if nic == "n1:eth0")
    }
    # Every message has arrived in spite of lost frames.
    messages = documents(path, "--messages")
    assert [message["message"] for message in messages] == [f"n1/n2/{number}" for number in range(COUNT)]
    assert sum(message["lost"] for message in messages) == lost
    assert {message["bytes"] for message in messages} == {SIZE}
    sent = Counter(
        document["way"] == "out" and document["interface"] == "n1:eth0"
        for document in document_list
        if document["fields"]["emp.type"] < 3
    )
    assert sum(message["sent"]["data"] for message in messages) == sent[True]
    assert all(message["sent"]["ack"] >= 1 for message in messages)
