"""EMP with Scapy instead of the generated codec: the frames on the wire and the results are equal."""

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
LONG_TIMEOUT = Settings(
    timeout=20_000_000_000, longest_timeout=20_000_000_000
)  # ns: no retransmission on a busy machine


async def exchange(endpoint: Endpoint, node: ProgramNode) -> list[bytes]:
    """Exchange messages one at a time, so that each node's frames have one order; receives are posted first, to avoid
    retransmissions."""
    peer, received_messages = 1 - node.number, []
    buffers = [bytearray(size) for size in SIZES]
    posted = {
        number: endpoint.post_receive(peer, number, buffer)
        for number, buffer in enumerate(buffers)
        if not (number + node.number) % 2
    }
    for number, size in enumerate(SIZES):
        message = bytes((offset * 7 + number) & 0xFF for offset in range(size))
        if (number + node.number) % 2:
            await endpoint.send(peer, number, message)
        else:
            await posted[number]
            received_messages.append(bytes(buffers[number]))
    return received_messages


def run_exchange(cluster: RunningCluster, frame_codec: Codec) -> tuple[dict[str, list[bytes]], dict[str, list[bytes]]]:
    """Return each program's results and the frames that each node received, with incarnations replaced by 1.

    Frames are sorted: messages before acknowledgements, because an acknowledgement races with the program's reply.
    """
    with ExitStack() as stack:
        taps = {
            node.name: stack.enter_context(open_socket(node.namespace, node.layout.nics[0].name, codec.ETHERTYPE))
            for node in cluster
        }
        programs = {node.name: exchange for node in cluster}
        with agents(cluster, plug(LONG_TIMEOUT, frame_codec), codec.ETHERTYPE, programs) as run:
            outcome = run.wait(TIMEOUT)
        frames_by_node = {
            name: sorted(
                map(without_incarnations, received(tap)), key=lambda frame: codec.type_of(frame) == codec.TYPE_ACK
            )
            for name, tap in taps.items()
        }
    return dict(outcome.results), frames_by_node


def without_incarnations(frame: bytes) -> bytes:
    """Return the frame with 1 for its incarnations, which depend on the NICs' start times."""
    is_message = codec.type_of(frame) == codec.TYPE_MESSAGE
    unpack, pack = (codec.unpack_message, codec.pack_message) if is_message else (codec.unpack_frame, codec.pack_frame)
    fields = list(unpack(frame))
    assert pack(*fields) == frame, "the codec packs these fields into another frame"
    sender = 4 if is_message else 5
    fields[sender : sender + 2] = [min(int(incarnation), 1) for incarnation in fields[sender : sender + 2]]
    return bytes(pack(*fields))


def test_frames_and_results_with_scapys_codec_equal_those_of_the_generated_codec() -> None:
    by_scapy = cast("Codec", scapy_codec(frames))
    with Cluster.back_to_back().up() as cluster:
        expected, expected_frames = run_exchange(cluster, codec)
        results, frames_of_scapy = run_exchange(cluster, by_scapy)
    assert results == expected
    assert [len(message) for message in [*results["n1"], *results["n2"]]] == [*SIZES[::2], *SIZES[1::2]]
    assert frames_of_scapy == expected_frames
    assert all(len(frames_of_one) > len(SIZES) for frames_of_one in expected_frames.values())
