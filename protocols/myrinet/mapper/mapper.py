"""The mapper of a NIC. It processes frames and timers, sends frames, and installs route tables.

Every mapper answers probes. The reachable mapper with the lowest number leads. A mapper that has not received frames
from or about a better leader for some time starts to explore. Its probes announce it as leader to the mappers that they
reach; a mapper that is, or follows, a better leader reports that leader in its answer. Only a leader's own frames prove
that it is up; reports of other mappers are valid for a limited time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import add_envelope, remove_envelope, reverse_route, route_bytes, route_of
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
from protocols.myrinet.mapper.leader import LeaderTask, Pause, lead
from protocols.myrinet.mapper.network_map import Topology
from protocols.myrinet.mapper.prober import HostAnswer, Pacer, Probe, Prober
from protocols.myrinet.mapper.route_tables import PartialTable, Path, Table, paths_of, return_route_of, split_table
from protocols.myrinet.mapper.routes import Routing
from protocols.myrinet.mapper.settings import Settings

BROADCAST: Final = b"\xff" * 6
NOBODY: Final = 0xFFFF
"""Value of the leader field of a frame whose sender has no leader; not a node's number."""
_MAX_STAGGERED: Final = 64
"""Maximum multiple of `Settings.stagger` by which a mapper delays its start."""


@dataclass(frozen=True, slots=True)
class MapperIdentity:
    """Identity of the mapper's own NIC. number: of its node, unique and below 65535. incarnation: increases with every
    restart. address: its MAC. siblings: MACs of the NIC's other functions, to which the mapper sends the routes, and
    which may ask it for a check of the map (`follower`)."""

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
    part_count: int
    payload: Buffer


class Mapper:
    """A mapper. send: puts a complete frame on the wire. install: replaces the NIC's routes; the table has a route to
    every reachable NIC. Both are called by methods of the mapper, and must not call the mapper. The owner of the mapper
    checks the deadline after every call of a method."""

    def __init__(
        self,
        identity: MapperIdentity,
        send: Callable[[bytes], None],
        install: Callable[[Table], None],
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.counters = counters = Counters()
        self.identity = identity
        self._send, self._install = send, install
        pacer = Pacer(settings.interval, settings.burst)
        self._prober = Prober(settings, counters, pacer, self._send_probe)
        self._distributor = Distributor(settings, counters, pacer, self._send_part)
        self.table: Table | None = None
        """The NIC's current routes."""
        self.topology: Topology | None = None
        """The map, if this mapper leads and has explored the network."""
        self._tables: dict[int, Table] = {}  # of a leader: the tables of all hosts, by number
        self._epoch = 0  # the latest known epoch
        self._leader: int | None = None
        self._leader_valid_until: int | None = None  # time until which the leader is considered up
        self._lead_at: int | None = None  # time at which this mapper starts to lead
        self._route_to_leader: bytes | None = None  # the reverse of the route of the leader's last probe
        self._task: LeaderTask | None = None
        self._resume_at: int | None = None
        self._last_hint_at = -settings.timeout  # time of the last hint to the leader
        self._partial_table: PartialTable | None = None
        self._now = 0

    @property
    def leader(self) -> int | None:
        """Number of the leader, or None if unknown."""
        return self._leader

    @property
    def is_leading(self) -> bool:
        """Whether this mapper leads."""
        return self._task is not None

    @property
    def deadline(self) -> int | None:
        """Time at which `on_timer` is due, or None."""
        when = (self._lead_at, self._resume_at, self._prober.deadline, self._distributor.deadline)
        return min((time for time in when if time is not None), default=None)

    def start(self, now: int) -> None:
        """Start the mapper; called once. Mappers with low numbers start to lead earlier, so that not all explore at the
        same time. A mapper that has received a leader's frame before the start leads or follows already."""
        self._now = now
        if self._leader is None:
            self._schedule_leading(now + self.settings.stagger * min(self.identity.number, _MAX_STAGGERED))

    def on_timer(self, now: int) -> None:
        """Handle the deadline, which has passed."""
        self._now = now
        if self._lead_at is not None and now >= self._lead_at:
            self._start_leading(now)
        self._distributor.on_timer(now)
        if self._prober.is_busy:
            self._prober.on_timer(now)
        self._run_task(now)

    def on_unreachable(self, now: int, number: int) -> None:
        """Handle a report that the NIC does not reach a node: the leader should check the map at once. number: of the
        node; of its first function, if its NIC has several."""
        if self.table is None or number in self.table.paths:
            self._hint(now)

    def receive(self, now: int, frame: bytes) -> None:
        """Handle a frame, valid or not."""
        self._now = now
        try:
            to, sender, kind, source, leader, incarnation, number, epoch, author, part, part_count, payload = (
                codec.unpack_frame(remove_envelope(frame))
            )
            contents = _Contents(
                sender, source, leader, incarnation, number, (epoch, author), part, part_count, payload
            )
            if to not in (self.identity.address, BROADCAST) or source == NOBODY:
                self.counters.strangers += 1
            elif source == self.identity.number:
                self._on_return(now, kind, contents)
            elif kind == KIND_PROBE:
                self._on_probe(now, contents)
            elif kind == KIND_ANSWER:
                self._on_answer(now, contents)
            elif kind == KIND_TABLE:
                self._on_table(now, contents)
            elif kind == KIND_ACK:
                self._distributor.on_acknowledged(now, source, contents.version, part)
            elif kind == KIND_HINT:
                self.counters.hints_received += 1
                if sender in self.identity.siblings:
                    self._hint(now)
                else:
                    self._check_map(now)
            else:
                self.counters.strangers += 1
        except MalformedError as error:
            if error.reason in ("check", "crc8"):
                self.counters.corrupt += 1
            else:
                self.counters.malformed += 1
            return
        self._run_task(now)

    def counter_values(self) -> Mapping[str, int]:
        return self.counters.counter_values()

    # Election.

    def _schedule_leading(self, when: int) -> None:
        """Set the time at which this mapper starts to lead, if it may lead."""
        self._lead_at = when if self.settings.leads else None

    def _start_leading(self, now: int) -> None:
        """Start to lead."""
        self._lead_at = self._leader_valid_until = self._route_to_leader = None
        self._leader = self.identity.number
        self.counters.elections += 1
        self._task = lead(self.identity.number, self.settings, self.counters, lambda: self._prober.has_losses, self)
        next(self._task)
        self._resume_at = now

    def _follow(self, leader: int) -> None:
        """Follow a better leader."""
        if self._task is not None:
            self.counters.abdications += 1
            self._task.close()
            self._task = self._resume_at = self.topology = None
            self._tables.clear()
            self._prober.stop()
            self._distributor.stop()
        self._leader = leader
        self._route_to_leader = None

    def _on_leader_frame(self, now: int, leader: int) -> bool:
        """Handle a probe or a table from a leader. Returns whether this mapper follows that leader."""
        best = self._leader
        if best is not None and leader > best and self._is_leader_up(now):
            return False
        if self.settings.leads and leader > self.identity.number:
            if not self.is_leading:
                self._start_leading(now)
            return False
        if leader != best:
            self._follow(leader)
        self._leader_valid_until = now + self.settings.patience
        self._schedule_leading(self._leader_valid_until + self.settings.stagger * self._rank())
        return True

    def _is_leader_up(self, now: int) -> bool:
        """Whether the leader is considered up."""
        return self._leader_valid_until is not None and now < self._leader_valid_until

    def _on_reported_leader(self, now: int, leader: int) -> None:
        """Handle a report of a better leader, whose frames should arrive soon."""
        if self._leader is None or leader < self._leader:
            self._follow(leader)
            self._schedule_leading(now + self.settings.rumour + self.settings.stagger * self._rank())

    def _rank(self) -> int:
        """Return the position among the mappers that may lead if the leader fails; they start in this order."""
        if self.table is None:
            return min(self.identity.number, _MAX_STAGGERED)
        return min(sum(number < self.identity.number for number in self.table.paths), _MAX_STAGGERED)

    # Probes.

    def _send_probe(self, probe: Probe, number: int) -> None:
        route = route_bytes(probe.route)
        if probe.is_to_host:
            self._send_frame(KIND_PROBE, route, BROADCAST, number=number, payload=route)
        else:
            self._send_frame(KIND_LOOP, route, self.identity.address, number=number)

    def _on_return(self, now: int, kind: int, contents: _Contents) -> None:
        if contents.sender != self.identity.address or contents.incarnation != self.identity.incarnation:
            self.counters.strangers += 1
        elif kind == KIND_LOOP:
            self._prober.on_answer(now, contents.number, None)
        elif kind == KIND_PROBE:
            me = self.identity
            self._prober.on_answer(now, contents.number, HostAnswer(me.number, me.incarnation, me.address))

    def _on_probe(self, now: int, contents: _Contents) -> None:
        return_route = route_bytes(reverse_route(route_of(contents.payload)))
        if self._on_leader_frame(now, contents.source):
            self._route_to_leader = return_route
        else:
            self._hint(now)  # the prober does not follow our leader, which may not have discovered it either
        self.counters.answers_sent += 1
        self._send_frame(KIND_ANSWER, return_route, contents.sender, number=contents.number, version=self._version)

    def _on_answer(self, now: int, contents: _Contents) -> None:
        self._update_epoch(contents.version[0])
        if contents.leader < self.identity.number:
            self._on_reported_leader(now, contents.leader)
        elif self.is_leading:
            self._prober.on_answer(
                now,
                contents.number,
                HostAnswer(contents.source, contents.incarnation, contents.sender, *contents.version),
            )

    @property
    def _version(self) -> tuple[int, int]:
        return self.table.version if self.table else (0, 0)

    # Duties of a leader.

    def _run_task(self, now: int) -> None:
        """Continue the leader's task until it pauses or runs a batch."""
        while self._task is not None and not self._prober.is_busy:
            if self._resume_at is not None and now < self._resume_at:
                return
            self._resume_at = None
            request = self._task.send(now)
            if isinstance(request, Pause):
                self._resume_at = now + request.time
            else:
                self._prober.run(now, request)

    def is_doubtful(self, topology: Topology) -> bool:
        """Implement `leader.MapListener`: a busy machine may answer late, and frames of a better leader may arrive
        before the next exploration."""
        return not topology.hosts and self.table is not None and bool(self.table.paths)

    def adopt(self, topology: Topology) -> None:
        """Implement `leader.MapListener`: compute the tables of all hosts, install the own one, and distribute the
        others."""
        self.topology = topology
        routing = Routing(topology)
        me = self.identity
        addresses = {me.number: me.address} | {number: host.address for number, host in topology.hosts.items()}
        paths = {
            source: {
                number: Path(route_bytes(route), addresses[number]) for number, route in routing.routes(source).items()
            }
            for source in addresses
        }
        if {number: table.paths for number, table in self._tables.items()} != paths:
            epoch = self._new_epoch()
            self._tables = {number: Table(epoch, me.number, routes) for number, routes in paths.items()}
        self._install_table(self._tables[me.number])
        self._distributor.stop()
        self.on_unchanged(topology.hosts)

    def on_unchanged(self, hosts: Mapping[int, HostAnswer]) -> None:
        """Implement `leader.MapListener`: send tables to the hosts that do not have the current one."""
        author = self.identity.number
        if self._epoch != self._tables[author].epoch:
            # Another leader, or this mapper before its last restart, has distributed tables; the own need a later epoch.
            epoch = self._new_epoch()
            self._distributor.stop()
            self._tables = {number: Table(epoch, author, previous.paths) for number, previous in self._tables.items()}
            self._install_table(self._tables[author])
        for number, host in hosts.items():
            table = self._tables[number]
            if (host.epoch, host.author) != table.version and not self._distributor.has_table_for(number):
                route = route_of(self._tables[author].paths[number].route)
                self._distributor.queue_table(number, table, route, route_of(table.paths[author].route))
        self._distributor.on_timer(self._now)

    def _send_part(self, part_message: TablePart) -> None:
        address = self._tables[self.identity.number].paths[part_message.host].address
        self._send_frame(
            KIND_TABLE,
            route_bytes(part_message.route),
            address,
            version=part_message.table.version,
            part=part_message.part,
            part_count=part_message.part_count,
            payload=part_message.payload,
        )

    def _check_map(self, now: int) -> None:
        """Check the map at once, unless probes are in progress."""
        if self._task is not None and self._resume_at is not None and not self._prober.is_busy:
            self._resume_at = now

    # Epochs: 32-bit serial numbers other than 0.

    def _update_epoch(self, epoch: int) -> None:
        if _is_later(epoch, self._epoch):
            self._epoch = epoch

    def _new_epoch(self) -> int:
        self._epoch = self._epoch + 1 & 0xFFFF_FFFF or 1
        return self._epoch

    def _has(self, version: tuple[int, int]) -> bool:
        """Whether the NIC has this table, or a later table of the same leader."""
        epoch, author = version
        return self.table is not None and author == self.table.author and not _is_later(epoch, self.table.epoch)

    # Messages from and to other mappers.

    def _hint(self, now: int) -> None:
        """Ask the leader to check the map, at most once per `Settings.timeout`; if this mapper leads, check it."""
        if self._task is not None:
            self._check_map(now)
        elif self._leader is not None and now - self._last_hint_at >= self.settings.timeout:
            # A hint takes each known route to the leader, since some may be broken.
            routes = set() if self._route_to_leader is None else {self._route_to_leader}
            if self.table is not None and self._leader in self.table.paths:
                routes.add(self.table.paths[self._leader].route)
            for route in sorted(routes):
                self._last_hint_at = now
                self.counters.hints_sent += 1
                self._send_frame(KIND_HINT, route, BROADCAST)

    def _on_table(self, now: int, contents: _Contents) -> None:
        """Handle a part of this NIC's table. Raises MalformedError."""
        if contents.version[1] != contents.source or contents.part >= contents.part_count:
            raise MalformedError("part")
        return_route, _ = return_route_of(contents.payload)
        paths = paths_of(contents.payload)
        if not self._on_leader_frame(now, contents.source):
            self.counters.strangers += 1
            return
        self._update_epoch(contents.version[0])
        if not self._has(contents.version):
            partial_table = self._partial_table
            if partial_table is None or (partial_table.version, partial_table.count) != (
                contents.version,
                contents.part_count,
            ):
                partial_table = self._partial_table = PartialTable(contents.version, contents.part_count)
            table = partial_table.add(contents.part, paths)
            if table is not None:
                self._partial_table = None
                self._install_table(table)
        self._send_frame(
            KIND_ACK,
            return_route,
            contents.sender,
            version=contents.version,
            part=contents.part,
            part_count=contents.part_count,
        )

    def _install_table(self, table: Table) -> None:
        """Install a new table in this NIC, and send it to the NIC's other functions."""
        if table != self.table:
            self.table = table
            self.counters.tables_installed += 1
            self._install(table)
            parts = split_table(table, (), self.settings.chunk) if self.identity.siblings else []
            for sibling in self.identity.siblings:
                for part, payload in enumerate(parts):
                    self._send_frame(
                        KIND_TABLE,
                        b"",
                        sibling,
                        version=table.version,
                        part=part,
                        part_count=len(parts),
                        payload=payload,
                    )

    def _send_frame(
        self,
        kind: int,
        route: bytes,
        to: bytes,
        *,
        number: int = 0,
        version: tuple[int, int] = (0, 0),
        part: int = 0,
        part_count: int = 0,
        payload: Buffer = b"",
    ) -> None:
        """Send a frame. Its leader field names the leader that this mapper follows; without one, this mapper if it may
        lead."""
        me = self.identity
        leader = me.number if self.settings.leads else NOBODY
        if self._leader is not None and self._is_leader_up(self._now):
            leader = self._leader
        epoch, author = version
        about = number, epoch, author, part, part_count
        frame = codec.pack_frame(to, me.address, kind, me.number, leader, me.incarnation, *about, payload)
        self._send(add_envelope(frame, route))


def _is_later(epoch: int, reference: int) -> bool:
    """Compare epochs as serial numbers (RFC 1982)."""
    return 0 < epoch - reference & 0xFFFF_FFFF < 0x8000_0000
