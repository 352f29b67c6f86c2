"""Messages of captures: grouping of frames, summaries and timelines."""

from __future__ import annotations

from types import ModuleType

import pytest

from protocols.core.codegen import generate
from protocols.core.frame_kinds import Kind
from testbed.fabric import pcapng
from testbed.fates.headers import standard_fields
from testbed.observe.decoding import message_timelines as message_timelines
from testbed.observe.decoding.capture_reader import CaptureReader, Frame, Interface
from testbed.observe.decoding.frame_output import Timelines, summary
from testbed.observe.decoding.message_timelines import Message, Messages, Names
from testbed.observe.format.frame_format import make_formatters
from tests.unit.observe.emp_captures import LINK, N1, N2, A, B, ack, capture, data, first_frame, mac_bytes
from tests.unit.protocols import synthetic_frames

Records = list[tuple[int, int, bytes, pcapng.Bound, str]]
NICS = {mac_bytes(A): "n1:eth0", mac_bytes(B): "n2:eth0"}

LOSSY: Records = [
    (N1, 1_000, first_frame(7, b"abc", 6), "outbound", ""),
    (N1, 1_100, data(7, 1, b"def"), "outbound", "dropped by loss, frame 1 of flow x"),
    (N2, 2_000, first_frame(7, b"abc", 6), "inbound", ""),
    (N1, 5_000, data(7, 1, b"def"), "outbound", ""),
    (N2, 6_000, data(7, 1, b"def"), "inbound", ""),
    (N2, 6_100, ack(7, 1), "outbound", "queue full"),
    (N1, 9_000, data(7, 1, b"def"), "outbound", "delayed for 5 ns by rule, frame 3 of flow x"),
    (N2, 9_900, data(7, 1, b"def"), "inbound", ""),
    (N2, 9_950, ack(7, 1), "outbound", ""),
    (N1, 11_000, ack(7, 1), "inbound", ""),
]


def group_frames(reported_frames: Records, *, nics: bool = True) -> list[Message]:
    reader = CaptureReader("test")
    messages = Messages(reader.nics, lambda _: True)
    messages.add(reader.feed(capture(reported_frames, nics=nics)))
    assert not messages.unassigned
    return messages.assembled


def test_a_message_has_its_frames_its_losses_and_its_acknowledgements() -> None:
    (message,) = group_frames(LOSSY)
    assert (message.protocol, message.id, message.source, message.destination) == (
        "emp",
        (7,),
        mac_bytes(A),
        mac_bytes(B),
    )
    assert (message.begun, message.ended, message.total) == (1_000, 11_000, 6)
    assert message.sent == {"data": 4, "ack": 2}
    assert (message.lost, message.again) == (2, 3)
    assert [sighting.again for sighting in message.sightings] == [False] * 3 + [True] + [False] * 2 + [True] + [
        False,
        True,
        False,
    ]
    assert [sighting.lost for sighting in message.sightings] == [False, True, False, False, False, True] + [False] * 4
    assert summary(message) == "EMP, 6 bytes, 4 frames, 2 acknowledgements, 2 lost, 3 sent again, in 10.000 us"


def test_a_timeline_begins_with_the_first_frame_and_lists_each_fate() -> None:
    lines = Timelines(NICS).details(*group_frames(LOSSY))
    assert lines[0] == f"0.000001000  n1/n2/7  {summary(*group_frames(LOSSY))}"
    assert lines[1] == "  +0.000000000 n1:eth0 > EMP MESSAGE message 7 frame 0, node 0 to 1, tag 0x20, 3 of 6 bytes"
    assert lines[2] == (
        "  +0.000000100 n1:eth0 > EMP DATA message 7 frame 1, 3 bytes  lost  [dropped by loss, frame 1 of flow x]"
    )
    assert lines[4] == "  +0.000004000 n1:eth0 > EMP DATA message 7 frame 1, 3 bytes  again"
    assert lines[-1] == "  +0.000010000 n1:eth0 < EMP ACK message 7 frame 1"
    assert len(lines) == 1 + len(LOSSY)


def test_frames_of_a_capture_without_nics_are_counted_at_their_first_point() -> None:
    (message,) = group_frames(LOSSY, nics=False)
    assert (message.sent, message.lost, message.again) == ({"data": 4, "ack": 2}, 2, 3)
    assert Names({}).of(message) == f"{A}/{B}/7"
    assert Names({}).matches(f"{A}/7", message)


def test_messages_with_equal_ids_are_distinguished_by_ends_and_incarnations() -> None:
    reply_frame = first_frame(7, b"back", 4, source=B, destination=A, sender=9)
    reported: Records = [
        (N1, 1, first_frame(7, b"abc", 3), "outbound", ""),
        (N2, 2, reply_frame, "outbound", ""),
        (N2, 3, ack(7, 0), "outbound", ""),
        (N1, 4, ack(7, 0, source=A, destination=B, sender=9), "outbound", ""),
        (N1, 5, first_frame(7, b"abc", 3, sender=4), "outbound", ""),
    ]
    messages = group_frames(reported)
    assert [Names(NICS).of(message) for message in messages] == ["n1/n2/7", "n2/n1/7", "n1/n2/7"]
    assert [message.sent for message in messages] == [{"data": 1, "ack": 1}, {"data": 1, "ack": 1}, {"data": 1}]
    assert [message.total for message in messages] == [3, 4, 3]


def test_a_malformed_frame_starts_no_message_but_is_part_of_a_known_one() -> None:
    first = first_frame(7, b"abc", 6)
    broken = first[:-1] + b"X"
    damaged_frame = data(8, 1, b"abc")[:-1] + b"X"
    reader = CaptureReader("test")
    messages = Messages(reader.nics, lambda _: True)
    reported: Records = [
        (N1, 1, first, "outbound", "1 bit flipped by corrupt, frame 1 of flow x"),
        (N2, 2, broken, "inbound", ""),
        (N2, 3, damaged_frame, "inbound", ""),
        (N2, 4, b"\xff" * 60, "inbound", ""),  # of an unknown protocol
    ]
    messages.add(reader.feed(capture(reported)))
    (message,) = messages.assembled
    assert [sighting.what for sighting in message.sightings][1] == "EMP, broken (check)"
    assert messages.unassigned == 1


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("n1/7", True),
        ("n1/n2/7", True),
        ("n1:eth0/n2:eth0/7", True),
        (f"n1/{B}/7", True),
        ("n1/8", False),
        ("n2/7", False),
        ("n1/n3/7", False),
        ("7", False),
        ("/7", False),
        ("", False),
        ("n1/n2/n3/7", False),
    ],
)
def test_a_message_is_identified_by_its_nodes_and_its_id(text: str, matches: bool) -> None:
    (message,) = group_frames(LOSSY)
    assert Names(NICS).matches(text, message) is matches


def test_a_nic_is_named_with_its_port_if_its_node_has_several() -> None:
    (message,) = group_frames(LOSSY)
    assert Names({**NICS, mac_bytes("02:00:00:00:00:03"): "n1:eth1"}).of(message) == "n1:eth0/n2/7"


# A protocol whose later frames refer to a message by handles.

KINDS = {
    9: Kind("control", "ORDER", message=("raw",), handles=(("region", "hash"),)),
    1: Kind("control", "CALL", back=True, handles=(("region", "hash"), ("window", "address"))),
    2: Kind("data", "REPLY", handles=(("window", "reply.id"),), part="raw"),
}


@pytest.fixture
def synthetic_codec(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    frames = ModuleType(synthetic_frames.__name__)
    vars(frames).update({**vars(synthetic_frames), "KIND": "kind", "KINDS": KINDS})
    codec = ModuleType("synthetic")
    exec(generate(frames, "the tests"), codec.__dict__)
    fields = standard_fields()
    fields.register("made", codec.ETHERTYPE, codec.FIELDS, codec.FLOW)
    table = make_formatters({"made": codec}, fields)
    monkeypatch.setattr(message_timelines, "formatters", lambda: table)
    return codec


def test_frames_with_handles_belong_to_the_latest_message_with_these_handles(synthetic_codec: ModuleType) -> None:
    a, b = mac_bytes(A), mac_bytes(B)

    def exchange(number: int, window: int) -> list[bytes]:
        return [
            synthetic_codec.pack_order(b, a, 0, 0, 5, number),
            synthetic_codec.pack_call(a, b, 0, 0, 5, 0, window, 0, 0),
            synthetic_codec.pack_reply(b, a, 0, 0, 0, 1, bytes(6), window),
            synthetic_codec.pack_reply(b, a, 0, 0, 0, 2, bytes(6), window),
        ]

    raw_frames = [*exchange(100, 30), *exchange(101, 31), synthetic_codec.pack_reply(b, a, 0, 0, 0, 3, bytes(6), 30)]
    frames = [Frame(time, Interface("n1:eth0", LINK), "outbound", raw, len(raw)) for time, raw in enumerate(raw_frames)]
    messages = Messages({}, lambda _: True)
    messages.add(frames)
    messages.add(
        [Frame(99, Interface("n1:eth0"), "outbound", synthetic_codec.pack_reply(b, a, 0, 0, 0, 1, bytes(6), 77), 40)]
    )
    assert [message.id for message in messages.assembled] == [(100,), (101,)]
    assert [[sighting.frame.when for sighting in message.sightings] for message in messages.assembled] == [
        [0, 1, 2, 3, 8],
        [4, 5, 6, 7],
    ]
    assert [message.sent["data"] for message in messages.assembled] == [3, 2]
    assert messages.unassigned == 1
