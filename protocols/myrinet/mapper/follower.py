"""Mapping in NICs with several functions. The first function has the mapper; each other function has a follower, which
receives route tables from the mapper, and forwards reports of unreachable nodes to the mapper.

The functions share a cable, so the same routes lead to all of them, and one mapper is sufficient. Tables and reports
are frames within the NIC, which are not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocols.core.firmware import Adapter
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import add_envelope, remove_envelope
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.codec import KIND_HINT, KIND_TABLE
from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.mapper import NOBODY, Mapper, MapperIdentity
from protocols.myrinet.mapper.route_tables import PartialTable, Path, Table, paths_of
from protocols.myrinet.mapper.settings import Settings


class Follower:
    """Receiver of the route tables of another function's mapper. identity: of this function. mapper: MAC of the
    function with the mapper. send, install: as for `mapper.Mapper`. Implements the interface of `mapper.Mapper`."""

    deadline = None

    def __init__(
        self,
        identity: MapperIdentity,
        mapper: bytes,
        send: Callable[[bytes], None],
        install: Callable[[Table], None],
    ) -> None:
        self.counters = Counters()
        self._identity = identity
        self._mapper = mapper
        self._send, self._install = send, install
        self._table: Table | None = None
        self._partial_table: PartialTable | None = None

    def start(self, now: int) -> None:
        """Do nothing: routes arrive in frames."""

    def on_timer(self, now: int) -> None:
        """Do nothing: there is no deadline."""

    def on_unreachable(self, now: int, number: int) -> None:  # noqa: ARG002
        """Forward a report that the NIC does not reach a node to the mapper; see `mapper.Mapper`."""
        if self._table is not None and number not in self._table.paths:
            return
        me = self._identity
        self.counters.hints_sent += 1
        frame = codec.pack_frame(
            self._mapper, me.address, KIND_HINT, me.number, NOBODY, me.incarnation, 0, 0, 0, 0, 0, b""
        )
        self._send(add_envelope(frame, b""))

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002
        """Handle a frame, valid or not. Probes reach all functions; only the mapper answers them."""
        try:
            to, sender, kind, _, _, _, _, epoch, author, part, parts, payload = codec.unpack_frame(
                remove_envelope(frame)
            )
            if to != self._identity.address or sender != self._mapper or kind != KIND_TABLE or part >= parts:
                self.counters.strangers += 1
                return
            partial_table, version = self._partial_table, (epoch, author)
            if partial_table is None or (partial_table.version, partial_table.count) != (version, parts):
                partial_table = self._partial_table = PartialTable(version, parts)
            table = partial_table.add(part, paths_of(payload))
        except MalformedError as error:
            if error.reason in ("check", "crc8"):
                self.counters.corrupt += 1
            else:
                self.counters.malformed += 1
            return
        if table is not None:
            self._partial_table, self._table = None, table
            self.counters.tables_installed += 1
            self._install(table)

    def counter_values(self) -> Mapping[str, int]:
        return self.counters.counter_values()


def make_mapper(
    adapter: Adapter, send: Callable[[bytes], None], install: Callable[[Table], None], settings: Settings
) -> Mapper | Follower:
    """Make the mapper of a function: the NIC's mapper, or a follower. send, install: as for `mapper.Mapper`."""
    addresses, host = adapter.addresses, adapter.host_of(adapter.number)
    siblings = tuple([addresses[number] for number in adapter.siblings])
    identity = MapperIdentity(adapter.number, adapter.incarnation, adapter.address, siblings)
    if host != adapter.number:
        return Follower(identity, addresses[host], send, install)
    return Mapper(identity, send, install, settings)


def paths_to_functions(adapter: Adapter, table: Table) -> Mapping[int, Path]:
    """Return paths to all functions of the NICs in a table, and to the other functions of this NIC."""
    addresses, hosts = adapter.addresses, adapter.hosts
    if not hosts:
        return table.paths
    paths = {
        number: Path(table.paths[host].route, addresses[number])
        for number, host in enumerate(hosts)
        if host in table.paths
    }
    return paths | {number: Path(b"", addresses[number]) for number in adapter.siblings}
