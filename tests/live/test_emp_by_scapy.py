"""EMP with frames made and read by Scapy: frames on the wire are equal, and the peer does not notice."""

from __future__ import annotations

from contextlib import ExitStack
from typing import cast

import pytest

from protocols.core.scapy_codec import scapy_codec
from protocols.emp import codec, frames
from protocols.emp.card import Codec
from protocols.emp.host import Endpoint, plug
from protocols.emp.settings import Settings
from testbed import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.node_sockets import open_socket, received

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 60.0  # s
SIZES = (0, 4, 1456, 1457, 9_000)
PATIENT = Settings(
    timeout=20_000_000_000, longest_timeout=20_000_000_000
)  # ns: nothing is sent twice on a slow machine


async def talk(endpoint: Endpoint, node: ProgramNode) -> list[bytes]:
    """Exchange messages one at a time, so that each node's frames have one order; receives are posted first, to avoid
    retransmissions."""
    peer, arrived = 1 - node.number, []
    buffers = [bytearray(size) for size in SIZES]
    posted = {
        number: endpoint.post_receive(peer, number, buffer)
        for number, buffer in enumerate(buffers)
        if not (number + node.number) % 2
    }
    for number, size in enumerate(SIZES):
        message = bytes((place * 7 + number) & 0xFF for place in range(size))
        if (number + node.number) % 2:
            await endpoint.send(peer, number, message)
        else:
            await posted[number]
            arrived.append(bytes(buffers[number]))
    return arrived


def exchange(cluster: RunningCluster, used: Codec) -> tuple[dict[str, list[bytes]], dict[str, list[bytes]]]:
    """Return each program's results and the frames that each node received, with incarnations set to those of a first
    run.

    Frames are sorted: messages before acknowledgements, as an acknowledgement races with the program's answer.
    """
    with ExitStack() as stack:
        ears = {
            node.name: stack.enter_context(open_socket(node.namespace, node.layout.nics[0].name, codec.ETHERTYPE))
            for node in cluster
        }
        programs = {node.name: talk for node in cluster}
        with agents(cluster, plug(PATIENT, used), codec.ETHERTYPE, programs) as run:
            outcome = run.wait(TIMEOUT)
        overheard = {
            name: sorted(map(at_first, received(ear)), key=lambda frame: codec.type_of(frame) == codec.TYPE_ACK)
            for name, ear in ears.items()
        }
    return dict(outcome.results), overheard


def at_first(frame: bytes) -> bytes:
    """The frame with 1 for the incarnations that it names, which are the times at which the NICs began."""
    of_message = codec.type_of(frame) == codec.TYPE_MESSAGE
    unpack, pack = (codec.unpack_message, codec.pack_message) if of_message else (codec.unpack_frame, codec.pack_frame)
    fields = list(unpack(frame))
    assert pack(*fields) == frame, "the codec would have made another frame of these fields"
    sender = 4 if of_message else 5
    fields[sender : sender + 2] = [min(int(incarnation), 1) for incarnation in fields[sender : sender + 2]]
    return bytes(pack(*fields))


def test_an_exchange_by_scapy_is_the_same_on_the_wire() -> None:
    by_scapy = cast("Codec", scapy_codec(frames))
    with Cluster.back_to_back().up() as cluster:
        expected, received = exchange(cluster, codec)
        got, heard_of_scapy = exchange(cluster, by_scapy)
    assert got == expected
    assert [len(message) for message in [*got["n1"], *got["n2"]]] == [*SIZES[::2], *SIZES[1::2]]
    assert heard_of_scapy == received
    assert all(len(frames_of_one) > len(SIZES) for frames_of_one in received.values())
