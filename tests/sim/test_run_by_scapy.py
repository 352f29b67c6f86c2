"""A run with frames built and parsed by Scapy captures the same bytes as the run with the generated codec."""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.packet import Packet

import testbed
from testbed.controller.runs.run_options import Codec
from testbed.errors import UnsupportedError
from testbed.spec.model import Description
from testbed.workloads.form import Comm, Node

CORRUPT = {"am2": "corrupt", "emp": "corrupt", "openmx": "drop_bad_check", "via": "corrupt"}
"""By protocol: the counter of frames with a wrong check."""


def run_captured(folder: Path, protocol: str, codec: Codec) -> dict[str, bytes]:
    cluster = Description.star(3, loss="5%", corrupt="2%", delay="10us", seed=4)
    result = testbed.run(
        cluster,
        "random",
        mode="sim",
        protocol=protocol,
        codec=codec,
        settings={"messages": 12},
        output=folder / codec,
        capture=True,
    )
    assert [result.results[name]["received"] for name in result.results]
    assert sum(counters[CORRUPT[protocol]] for counters in result.counters.values())
    return {path.name: path.read_bytes() for path in sorted((folder / codec).rglob("*.pcapng"))}


@pytest.mark.parametrize("protocol", CORRUPT)
def test_captures_by_scapy_and_by_the_codec_are_equal(tmp_path: Path, protocol: str) -> None:
    expected = run_captured(tmp_path, protocol, "generated")
    assert expected
    assert run_captured(tmp_path, protocol, "scapy") == expected


@pytest.mark.parametrize("protocol", CORRUPT)
@pytest.mark.parametrize("codec", ["generated", "scapy"])
def test_scapy_builds_the_frames_only_on_request(monkeypatch: pytest.MonkeyPatch, protocol: str, codec: Codec) -> None:
    built, build = [0], Packet.build

    def count_build(packet: Packet) -> bytes:
        built[0] += 1
        return bytes(build(packet))

    async def exchange(comm: Comm, node: Node) -> None:  # noqa: ARG001
        await comm.sendrecv("hello", 1 - comm.rank, source=1 - comm.rank)

    monkeypatch.setattr(Packet, "build", count_build)
    testbed.run("star-2", exchange, mode="sim", protocol=protocol, codec=codec)
    assert bool(built[0]) == (codec == "scapy")


def test_the_scapy_codec_is_rejected_for_a_kernel_protocol() -> None:
    with pytest.raises(UnsupportedError, match="tcp cannot have its frames built by Scapy"):
        testbed.run("star-4", "pingpong", protocol="tcp", codec="scapy")
