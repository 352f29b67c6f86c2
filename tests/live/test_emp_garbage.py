"""Malformed frames at full rate between EMP's own: transfers continue, and each frame is counted."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from zlib import crc32

import pytest

from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE, FRAME_SIZE, MESSAGE_SIZE, TYPE_ACK, TYPE_DATA, TYPE_MESSAGE, type_of
from testbed import Cluster
from testbed.controller.runs.agents import agents
from testbed.runtime.nodes.run_orders import ProgramNode
from tests.live.node_sockets import mac, open_socket, received, wait_until_readable
from tests.unit.protocols.emp_dialogue import ACCEPTED, DROPPED

pytestmark = [pytest.mark.alone, pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 20.0  # s
DURATION = 700_000_000  # ns of round trips
BURST = 300_000_000  # ns, shorter than DURATION
"""Duration of the flood of damaged copies, which leaves the agents of a small machine little time for anything else."""
MAX_FRAME = 14 + 1_500
"""Bytes of the largest frame that an interface accepts."""
ETHERNET = 14
LENGTH = slice(34, 36)
"""Offset of the payload's length in a frame."""
CHECK = slice(38, 42)
ERROR_COUNTERS = ["malformed", "corrupt", "strangers", "restarts", "given_up", "wrong_acknowledgements"]
"""Counters that no valid and new frame increments."""
SIZE = 4_000
"""Bytes of a message of three frames."""


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


async def ping(endpoint: emp.Endpoint, node: ProgramNode) -> int:
    """Make round trips for DURATION and check the returned content; return their number."""
    until, trips, peer, buffer = node.loop.now() + DURATION, 0, node.numbers["n2"], bytearray(SIZE)
    while node.loop.now() < until:
        reply = endpoint.post_receive(peer, 1, buffer)
        await endpoint.send(peer, 1, content(trips))
        await reply
        assert buffer == content(trips)
        trips += 1
    await endpoint.send(peer, 1, b"")
    return trips


async def pong(endpoint: emp.Endpoint, node: ProgramNode) -> int:
    peer, trips, buffer = node.numbers["n1"], 0, bytearray(SIZE)
    while (await endpoint.receive(peer, 1, buffer)).length:
        assert buffer == content(trips)
        await endpoint.send(peer, 1, bytes(buffer))
        trips += 1
    return trips


def assert_all_counted(counted: Mapping[str, int]) -> None:
    """Assert that each received frame is in exactly one counter."""
    assert sum(counted[name] for name in DROPPED + ACCEPTED) == counted["frames_received"]


def test_transfers_continue_despite_garbage_at_full_rate() -> None:
    with Cluster.star(3).up() as cluster:
        headers = [mac(cluster, name) + mac(cluster, "n3") + ETHERTYPE.to_bytes(2, "big") for name in ("n1", "n2")]
        device = cluster["n3"].layout.nics[0].name

        async def flood(_endpoint: emp.Endpoint, node: ProgramNode) -> int:
            until, sent = node.loop.now() + DURATION, 0
            rng = random.Random(1)
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
                wire.bind((device, 0))
                while node.loop.now() < until:
                    wire.send(headers[sent % 2] + rng.randbytes(rng.randrange(0, 200)))
                    sent += 1
            return sent

        with agents(cluster, emp.plug(), ETHERTYPE, {"n1": ping, "n2": pong, "n3": flood}) as run:
            outcome = run.wait(TIMEOUT)
    assert outcome.results["n1"] == outcome.results["n2"] > 10
    assert outcome.results["n3"] > 1_000
    for name in ("n1", "n2"):  # the kernel may drop some before the socket
        assert outcome.reports[name].counted["malformed"] > 1_000
        assert_all_counted(outcome.reports[name].counted)


def truncated(frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(ETHERNET, len(frame))]


def flipped(frame: bytes, rng: random.Random) -> bytes:
    bit = rng.randrange(8 * ETHERNET, 8 * len(frame))
    return frame[: bit // 8] + bytes([frame[bit // 8] ^ 1 << bit % 8]) + frame[bit // 8 + 1 :]


def with_other_version(frame: bytes, rng: random.Random) -> bytes:
    """Return the frame with another version and a correct checksum."""
    head = frame[:ETHERNET] + bytes([rng.choice([0, 2, 3, 255])]) + frame[ETHERNET + 1 : CHECK.start]
    return head + crc32(frame[CHECK.stop :], crc32(head)).to_bytes(4, "big") + frame[CHECK.stop :]


def padded(frame: bytes, _chance: random.Random) -> bytes:
    """Return the frame padded to the interface's MTU: a valid duplicate."""
    return frame.ljust(MAX_FRAME, b"\xff")


def lengthened(frame: bytes, _chance: random.Random) -> bytes:
    """Return the frame padded to the interface's MTU, its length field covering the padding."""
    length = MAX_FRAME - (MESSAGE_SIZE if type_of(frame) == TYPE_MESSAGE else FRAME_SIZE)
    return (frame[: LENGTH.start] + length.to_bytes(2, "big") + frame[LENGTH.stop :]).ljust(MAX_FRAME, b"\xff")


def with_excessive_length(frame: bytes, rng: random.Random) -> bytes:
    """Return the frame padded to the interface's MTU, its length field beyond that."""
    length = rng.randrange(MAX_FRAME, 1 << 16)
    return (frame[: LENGTH.start] + length.to_bytes(2, "big") + frame[LENGTH.stop :]).ljust(MAX_FRAME, b"\xff")


def record_frames(wire: socket.socket) -> list[bytes]:
    """Receive frames until there are at least 100 and one of every type."""
    frames: list[bytes] = []
    while len(frames) < 100 or {type_of(frame) for frame in frames} != {TYPE_MESSAGE, TYPE_DATA, TYPE_ACK}:
        wait_until_readable(wire)
        frames += received(wire)
    return frames


@pytest.mark.parametrize(
    ("damage", "rows"),
    [
        (truncated, ["malformed"]),
        (flipped, ["corrupt", "malformed"]),
        (with_other_version, ["malformed"]),
        (padded, ["duplicates", "late_acknowledgements"]),
        (lengthened, ["corrupt"]),
        (with_excessive_length, ["malformed"]),
    ],
)
def test_transfers_continue_despite_damaged_copies_of_their_frames_at_full_rate(
    damage: Callable[[bytes, random.Random], bytes], rows: list[str]
) -> None:
    """The frames have the address, incarnation and sequence numbers of each node's peer."""
    sent = 0

    def flood(wires: list[tuple[socket.socket, list[bytes]]]) -> None:
        nonlocal sent
        until = time.monotonic_ns() + BURST
        for number in itertools.count():
            for wire, frames in wires:
                with contextlib.suppress(BlockingIOError):
                    wire.send(frames[number % len(frames)])
                    sent += 1
            if time.monotonic_ns() > until:
                return

    with Cluster.star(2).up() as cluster:
        first, second = (
            open_socket(cluster[name].namespace, cluster[name].layout.nics[0].name, ETHERTYPE) for name in ("n1", "n2")
        )
        with (
            first as at_n1,
            second as at_n2,
            agents(cluster, emp.plug(), ETHERTYPE, {"n1": ping, "n2": pong}) as run,
        ):
            rng = random.Random(1)
            damaged = [
                (wire, [damage(frame, rng) for frame in frames])
                for wire, frames in ((at_n2, record_frames(at_n1)), (at_n1, record_frames(at_n2)))
            ]
            flooder = threading.Thread(target=flood, args=(damaged,))
            flooder.start()
            try:
                outcome = run.wait(TIMEOUT)
            finally:
                flooder.join()
    assert outcome.results["n1"] == outcome.results["n2"] > 10
    assert sent > 1_000
    for name in ("n1", "n2"):  # the kernel may drop some before the socket
        counted = outcome.reports[name].counted
        assert_all_counted(counted)
        assert min(counted[row] for row in rows) > 20
        assert not [row for row in ERROR_COUNTERS if counted[row] and row not in rows]
