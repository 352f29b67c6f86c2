"""Descriptions of EMP's frames, so that a test reads as a dialogue, hand-made frames, and NICs that exchange them."""

from __future__ import annotations

from collections.abc import Iterable

from protocols.core.firmware import FIRST
from protocols.emp import codec
from protocols.emp.host import Endpoint, plug
from protocols.emp.settings import Settings
from tests.unit.protocols.list_wires import Wires

TIMEOUT = Settings().timeout
FULL_PAYLOAD = 1500 - 28
"""Bytes of data of a full frame."""
FIRST_PAYLOAD = FULL_PAYLOAD - 16
"""Bytes of data of a full first frame, which has the message's header."""
TIME_AS_INCARNATION = 700_000
"""Incarnation of a cluster whose incarnations are times."""


def joined_nics(
    count: int = 2, mtu: int = 1500, settings: Settings | None = None, incarnation: int = FIRST
) -> tuple[Wires, list[Endpoint]]:
    """Return `count` NICs on a wire, and their hosts.

    settings: shared by all NICs; may be changed while they run. incarnation: the first one of each NIC.
    """
    wires = Wires(plug(settings), count, mtu, incarnation)
    return wires, hosts(wires)


def hosts(wires: Wires) -> list[Endpoint]:
    libraries = [agent.host for agent in wires.agents]
    assert all(isinstance(host, Endpoint) for host in libraries)
    return libraries  # type: ignore[return-value]  # as asserted


def counter_of(wires: Wires, number: int, name: str) -> int:
    return wires.agents[number].firmware.counter_values()[name]


DROPPED = (
    "malformed", "corrupt", "strangers", "stale", "unknown", "early", "unmatched", "held_full", "duplicates",
    "late_acknowledgements", "wrong_acknowledgements",
)  # fmt: skip
ACCEPTED = ("data_stored", "acknowledgements_received")


def accounted_frames(wires: Wires, number: int) -> int:
    """Return the number of received frames that were accepted, or dropped for a counted reason."""
    return sum(counter_of(wires, number, name) for name in DROPPED + ACCEPTED)


def dialogue(frames: Iterable[bytes]) -> list[str]:
    """Describe each frame: "header 3" (of message 3), "data 3.1" (its frame 1), "ack 3.2" (of its frame 2), "restarted 3.0"
    (frame 0 was for an earlier incarnation)."""
    lines = []
    for frame in frames:
        kind = codec.type_of(frame)
        if kind == codec.TYPE_MESSAGE:
            _, _, _, _, _, _, message, *_ = codec.unpack_message(frame)
            lines.append(f"header {message}")
            continue
        _, _, _, _, _, _, _, message, number, status, _ = codec.unpack_frame(frame)
        kind_name = "data" if kind == codec.TYPE_DATA else "ack" if status == codec.STATUS_OK else "restarted"
        lines.append(f"{kind_name} {message}.{number}")
    return lines


def content(size: int, start: int = 0) -> bytes:
    """Return `size` bytes that differ with their offset."""
    return bytes((start + index * 7 + (index >> 8)) & 0xFF for index in range(size))


def acknowledgement(
    wires: Wires, destination: int, source: int, message: int, frame: int, status: int = 0, sender: int | None = None
) -> bytes:
    """Return a hand-made acknowledgement from node `source` to node `destination`."""
    return codec.pack_frame(
        wires.addresses[destination], wires.addresses[source], codec.TYPE_ACK, 0, 3,
        wires.incarnations[destination] if sender is None else sender, wires.incarnations[source], message, frame, status,
    )  # fmt: skip


def header(
    wires: Wires, target: int, origin: int, message: int, payload: bytes = b"", *, tag: int = 0,
    total: int | None = None, last: bool = True, frame: int = 0, unit: int = 3, oldest: int = 0, sender: int | None = None,
    receiver: int | None = None, source: int | None = None, destination: int | None = None,
) -> bytes:  # fmt: skip
    """Return a hand-made first frame of a message."""
    return codec.pack_message(
        wires.addresses[target], wires.addresses[origin], codec.FLAGS_LAST if last else 0, unit,
        wires.incarnations[origin] if sender is None else sender,
        wires.incarnations[target] if receiver is None else receiver, message, frame, 0,
        origin if source is None else source, target if destination is None else destination, tag,
        len(payload) if total is None else total, oldest, payload,
    )  # fmt: skip


def data(
    wires: Wires,
    destination: int,
    source: int,
    message: int,
    frame: int,
    payload: bytes,
    *,
    last: bool = False,
    unit: int = 3,
) -> bytes:
    """Return a hand-made data frame of a message."""
    return codec.pack_frame(
        wires.addresses[destination], wires.addresses[source], codec.TYPE_DATA, codec.FLAGS_LAST if last else 0, unit,
        wires.incarnations[source], wires.incarnations[destination], message, frame, 0, payload,
    )  # fmt: skip
