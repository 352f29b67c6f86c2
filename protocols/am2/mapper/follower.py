"""The part of a mapper in the other functions of a NIC, whose first function has the mapper: it gets that one's routes.

The functions share a cable, so that routes lead to all of them alike, and one mapper is enough. It passes each table on
within the NIC, where nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocols.am2.mapper import codec
from protocols.am2.mapper.codec import KIND_TABLE
from protocols.am2.mapper.counters import Counters
from protocols.am2.mapper.route_tables import Collected, Table, paths_of
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import opened


class Follower:
    """address, mapper: MACs of this function, and of the one with the mapper. install: gives the function its routes. For
    the rest see `mapper.Mapper`."""

    deadline = None

    def __init__(self, address: bytes, mapper: bytes, install: Callable[[Table], None]) -> None:
        self.counters = Counters()
        self._address = address
        self._mapper = mapper
        self._install = install
        self._collected: Collected | None = None

    def start(self, now: int) -> None:
        """Wait for routes."""

    def on_timer(self, now: int) -> None:
        """None is set."""

    def unreachable(self, now: int, number: int) -> None:
        """Leave that to the function with the mapper: it is told by its own messages."""

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002
        """Handle a frame, valid or not: probes, which reach all functions, are the mapper's."""
        try:
            to, sender, kind, _, _, _, _, epoch, author, part, parts, payload = codec.unpack_frame(opened(frame))
            if to != self._address or sender != self._mapper or kind != KIND_TABLE or part >= parts:
                self.counters.strangers += 1
                return
            collected, version = self._collected, (epoch, author)
            if collected is None or (collected.version, collected.count) != (version, parts):
                collected = self._collected = Collected(version, parts)
            table = collected.add(part, paths_of(payload))
        except MalformedError as error:
            if error.reason in ("check", "crc8"):
                self.counters.corrupt += 1
            else:
                self.counters.malformed += 1
            return
        if table is not None:
            self._collected = None
            self.counters.tables_installed += 1
            self._install(table)

    def counted(self) -> Mapping[str, int]:
        return self.counters.counted()
