"""Open-MX under random and corrupted frames, and its driver under random commands: no exception is raised, only the ring and
pinned memory are written, and afterwards messages arrive."""

from __future__ import annotations

import random

import pytest

from protocols.core.malformed import MalformedError
from protocols.openmx import codec
from protocols.openmx.endpoint_memory import Op
from protocols.openmx.mx_names import MATCH_NONE, Status
from tests.unit.protocols.openmx_commands import OPS, command
from tests.unit.protocols.openmx_pair import RESEND, EndpointPair, kind_of, pattern, with_checksum


def check_new_connection(pair: EndpointPair) -> None:
    """Assert that a new connection carries messages."""
    pair.is_lost = lambda _: False
    for end, partner in zip(pair.ends, pair.partners, strict=True):
        end.disconnect(partner)
    pair.elapse(RESEND)
    pair.run(pair.ends[0].connect(1))
    buffer, request = pair.receive(50_000, 0xFFFF)
    pair.finish(pair.send(pattern(50_000), 0xFFFF), request)
    assert bytes(buffer) == pattern(50_000)


@pytest.mark.parametrize("seed", range(8))
def test_corrupted_frames_with_valid_checksums_harm_only_their_connection(seed: int) -> None:
    pair, rng = EndpointPair(), random.Random(seed)
    guard = bytearray(b"\xee" * 3 * 45_000)
    view = memoryview(guard)
    requests = [pair.ends[1].irecv(view[45_000:90_000], 0, 0, forget=True)]

    def corrupt_frame(frame: bytes) -> bool:
        if rng.random() < 0.5:
            offset = rng.randrange(14, len(frame) - 4)
            corrupted = frame[:offset] + rng.randbytes(1) + frame[offset + 1 :]
            pair.wires.deliver(with_checksum(corrupted) if rng.random() < 0.8 else corrupted)
        return rng.random() < 0.2

    pair.is_lost = corrupt_frame
    for size in (1, 100, 5_000, 40_000, 0, 33_000, 20_000) * 3:
        pair.send(pattern(size))
        pair.ends[1].isend([pattern(size)], pair.partners[1], 3)
        requests.append(pair.ends[0].irecv(bytearray(45_000), 0, 0, forget=True))
        pair.elapse(RESEND // 4)
    assert view[:45_000] == view[90_000:] == b"\xee" * 45_000
    check_new_connection(pair)


def test_random_frames_are_dropped() -> None:
    pair, rng = EndpointPair(), random.Random(1)
    head = pair.wires.addresses[1] + pair.wires.addresses[0] + b"\x86\xdf"
    for _ in range(3_000):
        body = b"\0\0" + bytes((rng.randrange(30, 50),)) + rng.randbytes(rng.randrange(80))
        pair.wires.deliver(with_checksum(head + body + bytes(4)) if rng.random() < 0.8 else head + body)
        pair.deliver_frames()
    check_new_connection(pair)


def test_a_frame_with_another_nodes_sender_index_is_dropped() -> None:
    pair = EndpointPair()
    pair.wires.deliver(codec.pack_tiny(pair.wires.addresses[1], pair.wires.addresses[0], 1, 0, 0, 0, 0, 0, 1, b"x"))
    assert pair.counter(1, "drop_bad_peer_addr") == 1


@pytest.mark.parametrize(
    ("total", "number", "size"),
    [(3_000, 0, 1_000), (3_000, 2, 1_462), (3_000, 3, 1), (3_000, 31, 10), (0, 0, 0), (40_000, 0, 1_462), (10, 0, 11)],
)
def test_fragments_outside_of_their_message_are_dropped(total: int, number: int, size: int) -> None:
    pair = EndpointPair()
    session, seqnum = pair.ends[1].session, pair.partners[0]._next_send
    destination, source = pair.wires.addresses[1], pair.wires.addresses[0]
    frame = codec.pack_medium(destination, source, 0, 0, 0, total, seqnum, 0, 5, session, number, bytes(size))
    pair.wires.deliver(frame)
    assert pair.counter(1, "drop_bad_header_datalen") == 1
    assert pair.ends[1].iprobe(5, MATCH_NONE) is None


def test_an_invalid_checksum_and_an_unknown_type_are_counted() -> None:
    pair = EndpointPair()
    frames: list[bytes] = []
    pair.is_lost = lambda frame: bool(frames.append(frame)) or True  # type: ignore[func-returns-value]  # all are lost
    pair.send(b"data")
    pair.deliver_frames()
    [frame] = frames
    assert kind_of(frame) == "TINY"
    pair.wires.deliver(frame[:-1] + bytes((frame[-1] ^ 1,)))
    pair.wires.deliver(with_checksum(frame[:16] + b"\x7f" + frame[17:]))
    assert (pair.counter(1, "drop_bad_check"), pair.counter(1, "drop_invalid_type")) == (1, 1)
    with pytest.raises(MalformedError):
        codec.unpack_tiny(frame[:20])


@pytest.mark.parametrize("seed", range(8))
def test_the_driver_survives_random_commands(seed: int) -> None:
    """A host is not trusted: each field may have any value of its width."""
    pair, rng = EndpointPair(), random.Random(seed)
    widths = {
        "endpoint": 1, "dst_endpoint": 1, "flag": 1, "peer": 2, "seqnum": 2, "ack": 2, "number": 2, "turn": 1, "session": 4,
        "word": 4, "match": 8, "length": 8, "address": 8,
    }  # fmt: skip
    library = pair.library(0)
    for _ in range(2_000):
        op = rng.choice([*[operation for operation in OPS if operation != Op.CLOSE], 99])
        fields = {
            name: rng.choice((0, 0, 1, 5, 200, (1 << 8 * width) - 1, rng.getrandbits(8 * width))) % (1 << 8 * width)
            for name, width in widths.items()
        }
        pair.wires.nics[0].ring_doorbell(library.commands.write(command(op, **fields)), 0, 0)
        pair.deliver_frames()
    assert pair.counter(0, "invalid") > 0
    pair.ends[0].close()
    pair.restart(0)
    pair.partners[0] = pair.ends[0].partner(1)
    pair.ends[1].disconnect(pair.partners[1])
    pair.run(pair.ends[0].connect(1))
    buffer, request = pair.receive(4, 0xFFFF)
    assert pair.finish(pair.send(b"data", 0xFFFF), request)[1].status is Status.SUCCESS
    assert buffer == b"data"


def test_a_receive_ring_of_an_invalid_size_is_rejected() -> None:
    pair = EndpointPair(connected=False)
    for entries in (0, 1, 31, 16_385, 1 << 40):
        pair.ends[0].write(command(Op.OPEN, 7, session=1, length=entries, address=pair.ends[0]._ring_address))
    assert pair.counter(0, "invalid") == 5
