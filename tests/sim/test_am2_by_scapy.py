"""AM-II's NICs with frames built and parsed by Scapy send the same bytes as those with the generated codec."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.am2 import codec, frames
from protocols.am2.plug import plug
from protocols.core.scapy_codec import by_scapy, rebuild
from protocols.myrinet import frames as myrinet_layer
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper import codec as mapper
from protocols.myrinet.mapper import frames as mapping
from testbed.sim.recorder import CAPTURE
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.model import Description
from tests.sim.am2_endpoints import Transcript, start_exchange

MACS = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
SECOND = 1_000_000_000


def myrinet_star() -> Description:
    nodes = [Node(name=f"n{number}") for number in (1, 2, 3)]
    links = [Link(ends=(f"n{number}", f"s1:{number}"), corrupt="2%", loss="1%") for number in (1, 2, 3)]
    return Description(name="three", nodes=nodes, switches=[Switch(name="s1", kind="myrinet")], links=links, seed=5)


CLUSTERS = {"ethernet": Description.star(3, delay="5us", loss="2%", corrupt="3%", seed=4), "myrinet": myrinet_star()}


def capture(cluster: Description, uses_scapy: bool, folder: Path) -> bytes:
    notes = Transcript()
    nics = plug(on_delivery=notes.on_delivery)
    with Simulation(
        cluster, by_scapy(nics, frames, mapping, myrinet_layer) if uses_scapy else nics, folder=folder
    ) as simulation:
        start_exchange(simulation, notes, endpoints=1, requests=12)
        simulation.run(timeout=60 * SECOND)
    notes.check()
    return (folder / CAPTURE).read_bytes()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_captures_by_scapy_and_by_the_codec_are_equal(tmp_path: Path, cluster: str) -> None:
    expected = capture(CLUSTERS[cluster], False, tmp_path / "codec")
    assert expected.count(codec.ETHERTYPE.to_bytes(2, "big")) > 100
    assert capture(CLUSTERS[cluster], True, tmp_path / "scapy") == expected


def test_rebuilding_a_frame_corrects_a_wrong_check() -> None:
    """A wrong field written by the firmware would show as a difference."""
    modules = {module.__name__ for module in (frames, mapping, myrinet_layer)}
    hint = add_envelope(mapper.pack_frame(*MACS, mapper.KIND_HINT, 2, 2, 7, 9, 0, 0, 0, 0), b"\x81")
    ack = add_envelope(codec.pack_answer(*MACS, codec.KIND_ACK, codec.REASON_NONE, 1, 2, 3, 4, 5, 6, 7, 8), b"")
    for frame in (hint, ack):
        assert rebuild(modules, frame) == frame
        for position in (-3, -1):  # in the check, and the CRC-8
            wrong_frame = bytearray(frame)
            wrong_frame[position] ^= 4
            assert rebuild(modules, wrong_frame) == frame
    assert rebuild(modules, b"short") == b"short"
