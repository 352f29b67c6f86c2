"""A mapper, one for each NIC. It is given frames and the time; it sends frames and installs route tables.

Every mapper answers probes. Of the mappers that hear of each other, the one with the lowest number leads. A mapper that
has heard of no better one for some time begins to explore. Its probes tell every mapper that they reach that it leads;
a better one, or one that knows a better one, says so in its answer. Only a leader's own probes prove that it lives:
reports from others are believed for a limited time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import back, opened, route_bytes, route_of, sealed
from protocols.myrinet.mapper import codec
from protocols.myrinet.mapper.codec import (
    KIND_ACK,
    KIND_ANSWER,
    KIND_HINT,
    KIND_LOOP,
    KIND_PROBE,
    KIND_TABLE,
)
from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.distributor import Distributor, TablePart
from protocols.myrinet.mapper.leader import Duty, Pause, lead
from protocols.myrinet.mapper.network_map import Topology
from protocols.myrinet.mapper.prober import HostAnswer, Pacer, Probe, Prober
from protocols.myrinet.mapper.route_tables import Collected, Path, Table, parts_of, paths_of, way_back_of
from protocols.myrinet.mapper.routes import Routing
from protocols.myrinet.mapper.settings import Settings

BROADCAST: Final = b"\xff" * 6
NOBODY: Final = 0xFFFF
"""Not a node's number: the leader field of a frame whose sender knows no leader."""
_MAX_STAGGERED: Final = 64


@dataclass(frozen=True, slots=True)
class MapperIdentity:
    """The mapper's own NIC. number: its node's, unique and below 65535. incarnation: increases with every restart.
    address: its MAC. siblings: MACs of the NIC's other functions, which get its routes (`follower`)."""

    number: int
    incarnation: int
    address: bytes
    siblings: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of a frame."""

    sender: bytes
    source: int
    leader: int
    incarnation: int
    number: int
    version: tuple[int, int]
    part: int
    parts: int
    payload: memoryview


class Mapper:
    """A mapper. send: puts a complete frame on the wire. install: gives the NIC its routes, which replace those that it
    has, and reach every reachable NIC. Both are called while the mapper is being called, and must not call it. The
    driver checks the deadline after every call."""

    def __init__(
        self,
        station: MapperIdentity,
        send: Callable[[bytes], None],
        install: Callable[[Table], None],
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.counters = counters = Counters()
        self.station = station
        self._send, self._install = send, install
        pacer = Pacer(settings.interval, settings.burst)
        self._prober = Prober(settings, counters, pacer, self._send_probe)
        self._distributor = Distributor(settings, counters, pacer, self._send_parcel)
        self.table: Table | None = None
        """The routes that the NIC has."""
        self.topology: Topology | None = None
        """The network, if this mapper leads and has explored it."""
        self._tables: dict[int, Table] = {}
        self._epoch = 0  # the greatest epoch heard of
        self._leader: int | None = None
        self._proof: int | None = None  # the leader's own word is believed until then
        self._lead_at: int | None = None
        self._probed_by: bytes | None = None  # the way back of the leader's last probe
        self._duty: Duty | None = None
        self._resume_at: int | None = None
        self._hinted = -settings.timeout  # when the leader was last given a hint
        self._collected: Collected | None = None
        self._now = 0

    @property
    def leader(self) -> int | None:
        """Number of the leader, as far as known."""
        return self._leader

    @property
    def leads(self) -> bool:
        return self._duty is not None

    @property
    def deadline(self) -> int | None:
        """Time at which `tick` is due, or None."""
        when = (self._lead_at, self._resume_at, self._prober.deadline, self._distributor.deadline)
        return min((time for time in when if time is not None), default=None)

    def start(self, now: int) -> None:
        """Start; called once. Mappers with low numbers begin early, so that not all explore at once."""
        self._now = now
        self._wait(now + self.settings.stagger * min(self.station.number, _MAX_STAGGERED))

    def on_timer(self, now: int) -> None:
        """Handle the deadline, which has passed."""
        self._now = now
        if self._lead_at is not None and now >= self._lead_at:
            self._begin(now)
        self._distributor.on_timer(now)
        if self._prober.busy:
            self._prober.on_timer(now)
        self._go_on(now)

    def unreachable(self, now: int, number: int) -> None:
        """Report that the NIC does not reach a node: the leader should check the map at once."""
        if self.table is None or number in self.table.paths:
            self._hint(now)

    def receive(self, now: int, frame: bytes) -> None:
        """Handle a frame, valid or not."""
        self._now = now
        try:
            to, sender, kind, source, leader, incarnation, number, epoch, author, part, parts, payload = (
                codec.unpack_frame(opened(frame))
            )
            letter = _Contents(sender, source, leader, incarnation, number, (epoch, author), part, parts, payload)
            if to not in (self.station.address, BROADCAST) or source == NOBODY:
                self.counters.strangers += 1
            elif source == self.station.number:
                self._come_back(now, kind, letter)
            elif kind == KIND_PROBE:
                self._probed(now, letter)
            elif kind == KIND_ANSWER:
                self._answered(now, letter)
            elif kind == KIND_TABLE:
                self._given(now, letter)
            elif kind == KIND_ACK:
                self._distributor.acknowledged(now, source, letter.version, part)
            elif kind == KIND_HINT:
                self.counters.hints_received += 1
                self._look_again(now)
            else:
                self.counters.strangers += 1
        except MalformedError as error:
            if error.reason in ("check", "crc8"):
                self.counters.corrupt += 1
            else:
                self.counters.malformed += 1
            return
        self._go_on(now)

    def counted(self) -> Mapping[str, int]:
        return self.counters.counted()

    # Election.

    def _wait(self, when: int) -> None:
        self._lead_at = when if self.settings.leads else None

    def _begin(self, now: int) -> None:
        """Begin to lead: no better mapper has been heard of for some time."""
        self._lead_at = self._proof = self._probed_by = None
        self._leader = self.station.number
        self.counters.elections += 1
        self._duty = lead(self.station.number, self.settings, self.counters, lambda: self._prober.lossy, self)
        next(self._duty)
        self._resume_at = now

    def _follow(self, leader: int) -> None:
        """Follow a better leader."""
        if self._duty is not None:
            self.counters.abdications += 1
            self._duty.close()
            self._duty = self._resume_at = self.topology = None
            self._tables.clear()
            self._prober.stop()
            self._distributor.stop()
        self._leader = leader
        self._probed_by = None

    def _heard(self, now: int, leader: int) -> bool:
        """Handle a leader's own word. Returns whether it is the leader to follow."""
        best = self._leader
        if best is not None and leader > best and self._proven(now):
            return False
        if self.settings.leads and leader > self.station.number:
            if not self.leads:
                self._begin(now)
            return False
        if leader != best:
            self._follow(leader)
        self._proof = now + self.settings.patience
        self._wait(self._proof + self.settings.stagger * self._rank())
        return True

    def _proven(self, now: int) -> bool:
        """Whether the leader is known to live, or was a short time ago."""
        return self._proof is not None and now < self._proof

    def _rumoured(self, now: int, leader: int) -> None:
        """Handle a report that a better mapper leads: it should be heard from soon."""
        if self._leader is None or leader < self._leader:
            self._follow(leader)
            self._wait(now + self.settings.rumour + self.settings.stagger * self._rank())

    def _rank(self) -> int:
        """Position among the mappers that may lead if the leader fails; the first in order begins first."""
        if self.table is None:
            return min(self.station.number, _MAX_STAGGERED)
        return min(sum(number < self.station.number for number in self.table.paths), _MAX_STAGGERED)

    # Probes.

    def _send_probe(self, probe: Probe, number: int) -> None:
        route = route_bytes(probe.route)
        if probe.host:
            self._post(KIND_PROBE, route, BROADCAST, number=number, payload=route)
        else:
            self._post(KIND_LOOP, route, self.station.address, number=number)

    def _come_back(self, now: int, kind: int, letter: _Contents) -> None:
        if letter.sender != self.station.address or letter.incarnation != self.station.incarnation:
            self.counters.strangers += 1
        elif kind == KIND_LOOP:
            self._prober.answer(now, letter.number, None)
        elif kind == KIND_PROBE:
            station = self.station
            self._prober.answer(now, letter.number, HostAnswer(station.number, station.incarnation, station.address))

    def _probed(self, now: int, letter: _Contents) -> None:
        way = route_bytes(back(route_of(letter.payload)))
        if self._heard(now, letter.source):
            self._probed_by = way
        else:
            self._hint(now)  # it does not know our leader: maybe our leader does not know it
        self.counters.answers_sent += 1
        self._post(KIND_ANSWER, way, letter.sender, number=letter.number, version=self._version)

    def _answered(self, now: int, letter: _Contents) -> None:
        self._heard_of(letter.version[0])
        if letter.leader < self.station.number:
            self._rumoured(now, letter.leader)
        elif self.leads:
            self._prober.answer(
                now, letter.number, HostAnswer(letter.source, letter.incarnation, letter.sender, *letter.version)
            )

    @property
    def _version(self) -> tuple[int, int]:
        return self.table.version if self.table else (0, 0)

    # Duties of a leader.

    def _go_on(self, now: int) -> None:
        """Continue the leader's duty as far as possible."""
        while self._duty is not None and not self._prober.busy:
            if self._resume_at is not None and now < self._resume_at:
                return
            self._resume_at = None
            wanted = self._duty.send(now)
            if isinstance(wanted, Pause):
                self._resume_at = now + wanted.time
            else:
                self._prober.run(now, wanted)

    def is_doubtful(self, topology: Topology) -> bool:
        """Implements `leader.MapListener`. A busy machine answers late; meanwhile a better leader may be heard from."""
        return not topology.hosts and self.table is not None and bool(self.table.paths)

    def adopt(self, topology: Topology) -> None:
        """Implements `leader.Realm`."""
        self.topology = topology
        routing = Routing(topology)
        me = self.station
        addresses = {me.number: me.address} | {number: host.address for number, host in topology.hosts.items()}
        paths = {
            source: {
                number: Path(route_bytes(route), addresses[number]) for number, route in routing.routes(source).items()
            }
            for source in addresses
        }
        if {number: table.paths for number, table in self._tables.items()} != paths:
            epoch = self._new_epoch()
            self._tables = {number: Table(epoch, me.number, own) for number, own in paths.items()}
        self._take(self._tables[me.number])
        self._distributor.stop()
        self.seen(topology.hosts)

    def seen(self, hosts: Mapping[int, HostAnswer]) -> None:
        """Implements `leader.Realm`. Sends tables to the hosts that lack theirs."""
        author = self.station.number
        if self._epoch != self._tables[author].epoch:
            # Another leader has distributed tables, or this mapper before its last restart: those must not look later
            # than ours.
            epoch = self._new_epoch()
            self._distributor.stop()
            self._tables = {number: Table(epoch, author, old.paths) for number, old in self._tables.items()}
            self._take(self._tables[author])
        for number, host in hosts.items():
            table = self._tables[number]
            if (host.epoch, host.author) != table.version and not self._distributor.brings(number):
                route = route_of(self._tables[author].paths[number].route)
                self._distributor.bring(number, table, route, route_of(table.paths[author].route))
        self._distributor.on_timer(self._now)

    def _send_parcel(self, parcel: TablePart) -> None:
        address = self._tables[self.station.number].paths[parcel.host].address
        self._post(
            KIND_TABLE,
            route_bytes(parcel.route),
            address,
            version=parcel.table.version,
            part=parcel.part,
            parts=parcel.parts,
            payload=parcel.payload,
        )

    def _look_again(self, now: int) -> None:
        """Check the map at once, unless probes are in progress."""
        if self._duty is not None and self._resume_at is not None and not self._prober.busy:
            self._resume_at = now

    # Epochs: serial numbers of 32 bits other than 0.

    def _heard_of(self, epoch: int) -> None:
        if _is_later(epoch, self._epoch):
            self._epoch = epoch

    def _new_epoch(self) -> int:
        self._epoch = self._epoch + 1 & 0xFFFF_FFFF or 1
        return self._epoch

    def _has(self, version: tuple[int, int]) -> bool:
        """Whether the NIC has that table, or a later one of the same leader."""
        epoch, author = version
        return self.table is not None and author == self.table.author and not _is_later(epoch, self.table.epoch)

    # Messages from and to other mappers.

    def _hint(self, now: int) -> None:
        if self._duty is not None:
            self._look_again(now)
        elif self._leader is not None and now - self._hinted >= self.settings.timeout:
            # By all known ways, since one of them may be broken.
            ways = set() if self._probed_by is None else {self._probed_by}
            if self.table is not None and self._leader in self.table.paths:
                ways.add(self.table.paths[self._leader].route)
            for way in sorted(ways):
                self._hinted = now
                self.counters.hints_sent += 1
                self._post(KIND_HINT, way, BROADCAST)

    def _given(self, now: int, letter: _Contents) -> None:
        """Handle a part of this NIC's table."""
        if letter.version[1] != letter.source or letter.part >= letter.parts:
            raise MalformedError("part")
        way_back, _ = way_back_of(letter.payload)
        paths = paths_of(letter.payload)
        if not self._heard(now, letter.source):
            self.counters.strangers += 1
            return
        self._heard_of(letter.version[0])
        if not self._has(letter.version):
            collected = self._collected
            if collected is None or (collected.version, collected.count) != (letter.version, letter.parts):
                collected = self._collected = Collected(letter.version, letter.parts)
            table = collected.add(letter.part, paths)
            if table is not None:
                self._collected = None
                self._take(table)
        self._post(KIND_ACK, way_back, letter.sender, version=letter.version, part=letter.part, parts=letter.parts)

    def _take(self, table: Table) -> None:
        if table != self.table:
            self.table = table
            self.counters.tables_installed += 1
            self._install(table)
            parts = parts_of(table, (), self.settings.chunk) if self.station.siblings else []
            for sibling in self.station.siblings:
                for part, payload in enumerate(parts):
                    self._post(
                        KIND_TABLE, b"", sibling, version=table.version, part=part, parts=len(parts), payload=payload
                    )

    def _post(
        self,
        kind: int,
        route: bytes,
        to: bytes,
        *,
        number: int = 0,
        version: tuple[int, int] = (0, 0),
        part: int = 0,
        parts: int = 0,
        payload: Buffer = b"",
    ) -> None:
        """Send a frame. It names the leader: the one that we follow, or this mapper if no better one is known."""
        me = self.station
        leader = me.number if self.settings.leads else NOBODY
        if self._leader is not None and self._proven(self._now):
            leader = self._leader
        epoch, author = version
        about = number, epoch, author, part, parts
        frame = codec.pack_frame(to, me.address, kind, me.number, leader, me.incarnation, *about, payload)
        self._send(sealed(frame, route))


def _is_later(epoch: int, other: int) -> bool:
    return 0 < epoch - other & 0xFFFF_FFFF < 0x8000_0000
