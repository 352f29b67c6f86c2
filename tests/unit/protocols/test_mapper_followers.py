"""Followers of a NIC's mapper: reports of unreachable nodes reach the mapper, and through it the leader."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from protocols.am2.firmware import Firmware
from protocols.am2.nic_memory import NicMemory
from protocols.am2.settings import Settings
from protocols.core.firmware import Adapter
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.follower import Follower, make_mapper
from protocols.myrinet.mapper.mapper import Mapper
from protocols.myrinet.mapper.route_tables import Path, Table, split_table
from protocols.myrinet.mapper.settings import Settings as MapperSettings

ADDRESSES = tuple(bytes((2, 0, 0, 0, 0, number)) for number in range(4))
HOSTS = (0, 0, 2, 2)
"""Functions 0 and 1 are of one NIC, functions 2 and 3 of another. Functions 0 and 2 have the mappers."""
ROUTE = b"\x81"
SECOND = 1_000_000_000


class Nic:
    """The mapper, or the follower, of one function. sent: frames."""

    def __init__(self, number: int) -> None:
        self.sent: list[bytes] = []
        adapter = Adapter(number, ADDRESSES, routed=True, hosts=HOSTS)
        self.mapper = make_mapper(adapter, self.sent.append, lambda _: None, MapperSettings())

    def take_kinds(self) -> list[int]:
        """Return and clear the kinds of the sent frames."""
        kinds = [codec.unpack_frame(frame)[2] for frame in self.sent if not frame[14] & 0x80]
        kinds += [codec.unpack_frame(frame[:14] + frame[15:])[2] for frame in self.sent if frame[14] & 0x80]
        self.sent.clear()
        return kinds


def frame_of(kind: int, source: int, to: int, payload: bytes, epoch: int = 0) -> bytes:
    """Return a frame from the mapper of function 0; a table has one part."""
    parts = int(kind == codec.KIND_TABLE)
    frame = codec.pack_frame(ADDRESSES[to], ADDRESSES[source], kind, source, 0, 1, 0, epoch, 0, 0, parts, payload)
    return add_envelope(frame, b"")


def test_a_follower_forwards_a_report_to_its_mapper_which_forwards_it_to_the_leader() -> None:
    mapper_nic, follower_nic = Nic(2), Nic(3)
    mapper_nic.mapper.receive(0, frame_of(codec.KIND_PROBE, 0, 2, ROUTE))
    assert isinstance(mapper_nic.mapper, Mapper)
    assert mapper_nic.mapper.leader == 0
    mapper_nic.take_kinds()
    follower_nic.mapper.on_unreachable(SECOND // 2, 0)
    (report,) = follower_nic.sent
    mapper_nic.mapper.receive(SECOND // 2, report)
    assert follower_nic.take_kinds() == mapper_nic.take_kinds() == [codec.KIND_HINT]
    assert follower_nic.mapper.counters.hints_sent == mapper_nic.mapper.counters.hints_sent == 1


def test_a_follower_does_not_report_a_node_that_the_map_does_not_contain() -> None:
    nic = Nic(3)
    (part,) = split_table(Table(1, 0, {0: Path(ROUTE, ADDRESSES[0])}), (), 1024)
    nic.mapper.receive(0, frame_of(codec.KIND_TABLE, 2, 3, part, epoch=1))
    assert isinstance(nic.mapper, Follower)
    assert nic.mapper.counters.tables_installed == 1
    nic.mapper.on_unreachable(0, 5)
    assert nic.sent == []
    nic.mapper.on_unreachable(0, 0)
    assert nic.take_kinds() == [codec.KIND_HINT]


@pytest.mark.requires("interpreted")  # it patches a method that compiled code calls directly
def test_a_peer_that_is_given_up_is_reported_by_the_first_function_of_its_nic(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[int] = []
    monkeypatch.setattr(Mapper, "on_unreachable", lambda _self, _now, number: reports.append(number))
    adapter = Adapter(0, ADDRESSES, routed=True, hosts=HOSTS)
    firmware = Firmware(adapter, Mock(), NicMemory(7), Settings(), MapperSettings())
    firmware._sender.given_up_peers.append(3)
    firmware._sender.scan_at = 0
    firmware.on_timer(0)
    assert reports == [2]
