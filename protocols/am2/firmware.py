"""AM-II's firmware: dispatch of frames, doorbells and deadlines.

A frame passes these checks in this order, and is dropped and counted at the first that fails: the route is used up; the
frame is long enough; the checksum is correct (Myrinet's CRC-8 covers no other bytes, and is ignored); the frame is
addressed to this NIC, and comes from a node of the cluster; it belongs to the last incarnations of both NICs
(`protocols.core.peers`). Then the receiver (`receiver`) handles messages, and the sender (`sender`) answers. On
source-routed networks the mapper handles mapping packets, and checks them itself.

Without acknowledgements (`Settings.reliable`), a message for incarnation 0 (unknown) is accepted, since it is sent only
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from protocols.am2 import codec
from protocols.am2 import page as layout
from protocols.am2.card import BROADCAST, Card, adapt_settings
from protocols.am2.codec import KIND_ACK, KIND_MESSAGE, KIND_NACK, REASON_NO_MAPPING, REASON_RESTARTED
from protocols.am2.counters import Counters
from protocols.am2.mapping_port import MappingPort
from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.nic_memory import NicEndpointFrames
from protocols.am2.peers import CachedHeader, Peer
from protocols.am2.pending_notices import PendingNotices
from protocols.am2.receiver import MALFORMED, DeliveryCallback, Receiver
from protocols.am2.residency import Residency
from protocols.am2.sender import Sender
from protocols.am2.settings import Settings
from protocols.am2.transport import KEEPALIVE, PREFIX_SIZE, PacketClass, build_answer, unpack_answer, unpack_body
from protocols.core import firmware
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.peers import PeerEvents, Standing
from protocols.myrinet.mapper.follower import Follower, make_mapper, paths_to_functions
from protocols.myrinet.mapper.mapper import Mapper
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import Settings as MapperSettings

_REASON_COUNT: Final = REASON_RESTARTED + 1
_MAX_TEMPORARY_REASON: Final = REASON_NO_MAPPING
"""Reasons up to this one are temporary."""
_TYPE_OFFSET: Final = 14
_MAPPING_TYPE: Final = b"\x00\x05"
_ROUTE_BIT: Final = 0x80
_SEND_SLOTS: Final = 2 * layout.RING_SIZE
_NEW: Final = PacketClass.NEW


class Firmware(firmware.Firmware, PeerEvents[Peer]):
    """The firmware of one NIC. settings: as adapted to the network. mapper: finds the routes, on source-routed
    networks; otherwise None."""

    __slots__ = (
        "_adapter",
        "_cached_headers",
        "_card",
        "_counters",
        "_has_few_deadlines",
        "_has_new_routes",
        "_is_mapper_started",
        "_leaving",
        "_loopback",
        "_loopback_frames",
        "_mapper",
        "_mapping_port",
        "_node_count",
        "_peers",
        "_pending_notices",
        "_receiver",
        "_reliable",
        "_residency",
        "_sender",
        "_waiting_slots",
        "settings",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        frames: NicEndpointFrames | None,
        settings: Settings,
        mapper_settings: MapperSettings | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """frames: endpoint frames of the only host; None: hosts `attach`. mapper_settings: settings of the mapper;
        None: there is no mapper, and routes are passed to `install` or come from a mapper daemon. on_delivery: called
        for each delivered message."""
        self.settings: Final = adapt_settings(settings, adapter)
        self._card = card = Card(adapter, nic, self.settings)
        self._counters = card.counters
        self._sender = Sender(card)
        self._pending_notices = PendingNotices(self._sender)
        self._residency = Residency(card, self._sender, self._serve_privileged)
        if frames is not None:
            self._residency.attach(0, frames)
        self._leaving: Final = self._residency.leaving
        self._receiver = Receiver(card, on_delivery)
        self._reliable = settings.reliable
        self._node_count = len(adapter.addresses)
        self._peers = card.peers
        self._cached_headers = card.peers.cached_headers
        self._loopback = card.peers.loopback
        self._loopback_frames = self._loopback.frames
        self._is_mapper_started = True
        self._has_few_deadlines = True  # there are neither pending notices nor a mapper
        self._waiting_slots = self._sender.waiting_slots
        self._has_new_routes = False  # routes have been installed, and the waiting messages have not been sent yet
        self._mapping_port = MappingPort(card, self._install)
        self._adapter = adapter
        self._mapper: Mapper | Follower | None = None
        if adapter.routed and mapper_settings is not None:
            self._mapper = make_mapper(adapter, self._send_mapping, self._install, mapper_settings)
            self._is_mapper_started = self._has_few_deadlines = False

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def mapper(self) -> Mapper | Follower | None:
        return self._mapper

    @property
    def deadline(self) -> int | None:
        deadline = self._sender.scan_at
        is_scan_only = self._has_few_deadlines and not self._leaving and not self._waiting_slots
        if not is_scan_only:
            return self._earliest_deadline(deadline)
        # A scan is followed by the checks of the peers that owe replies, so that these need no deadline of their own.
        return deadline if deadline is not None else self._sender.reply_watch.due_at

    def counter_values(self) -> Mapping[str, int]:
        counts = self._counters.counter_values()
        if self._mapper is not None:
            counts |= {f"mapper_{name}": count for name, count in self._mapper.counter_values().items()}
        return counts

    def pending_work(self) -> list[str]:
        sentences = [*self._sender.pending_work(), *self._pending_notices.pending_work()]
        if not self._card.is_mapped:
            sentences.append("no map of the network has arrived yet")
        return sentences + list(self._residency.pending_work())

    # Frames.

    def receive(self, now: int, frame: bytes) -> None:
        counters = self._counters
        counters.packets_received += 1
        cached = self._cached_headers.get(frame[:PREFIX_SIZE]) or self._cache_header(now, frame)
        if cached is None:
            return
        if cached.kind != KIND_MESSAGE:
            self._handle_answer(now, cached, frame)
            return
        try:
            channel, generation, sequence, stamp, body = unpack_body(frame)
        except MalformedError as error:
            self._count_malformed(error)
            return
        peer = cached.peer
        if not self._reliable:
            if reason := self._receiver.deliver(peer, body):
                counters.dropped += 1
                counters.malformed += reason == MALFORMED
            return
        receive_table = peer.receive_table
        if channel >= receive_table.channel_count:
            counters.malformed += 1
            return
        packet_class = receive_table.classify(channel, generation, sequence, stamp)
        if packet_class is _NEW:
            reason = self._receiver.deliver(peer, body)
            if reason == MALFORMED:
                counters.malformed += 1
                return
            if not reason or reason > _MAX_TEMPORARY_REASON:
                receive_table.advance(channel, reason)
                counters.packets_taken += not reason
            else:
                receive_table.refuse(channel, stamp)
        elif packet_class is PacketClass.DUPLICATE:
            counters.duplicates += 1
            reason = receive_table.last_answer(channel)
        else:
            counters.old += 1
            return
        counters.acknowledgements_sent += 1
        prefix = cached.answer_prefixes[reason]
        peer.send_later(partial(build_answer, prefix, channel, generation, sequence, stamp, peer.route or b""))

    def _handle_answer(self, now: int, cached: CachedHeader, frame: bytes) -> None:
        """Handle an ACK or a NACK."""
        try:
            channel, generation, sequence, stamp = unpack_answer(frame)
        except MalformedError as error:
            self._count_malformed(error)
            return
        peer = cached.peer
        if cached.kind == KIND_ACK:
            self._sender.on_ack(now, peer, channel, generation, sequence, stamp)
        elif cached.reason <= _MAX_TEMPORARY_REASON:
            self._sender.on_temporary_nack(now, peer, channel, generation, sequence, stamp)
        else:
            self._sender.on_permanent_nack(now, peer, channel, generation, sequence, stamp, cached.reason)
        if self._leaving:
            self._residency.advance_unloads(now)
            if self._loopback_frames:
                self._loopback.run(now, self.receive)  # an endpoint may have been loaded, and have sent messages

    def _cache_header(self, now: int, frame: bytes) -> CachedHeader | None:
        """Decode and cache the header of a frame that has no cached one, such as a peer's first frame of a kind in its
        incarnation. Returns None if the frame is dropped, or was a mapping packet."""
        card, counters, peers = self._card, self._counters, self._peers
        if len(frame) > _TYPE_OFFSET + 2 and frame[_TYPE_OFFSET : _TYPE_OFFSET + 2] == _MAPPING_TYPE:
            if self._mapper is not None:
                self._mapper.receive(now, frame)
                if self._has_new_routes:
                    self._send_waiting(now)
                return None
            if card.privileged is not None:
                self._mapping_port.receive(frame)
                return None
        try:
            if len(frame) > _TYPE_OFFSET and frame[_TYPE_OFFSET] & _ROUTE_BIT:
                raise MalformedError("route")
            kind = codec.kind_of(frame)
            if kind == KIND_MESSAGE:
                address, _, _, source, destination, sender, receiver, channel, generation, sequence, stamp, *_ = (
                    codec.unpack_message(frame[:-1])
                )
                reason = 0
            else:
                (
                    address, _, kind, reason, source, destination, sender, receiver, channel, generation, sequence, stamp, _,
                ) = codec.unpack_answer(frame[:-1])  # fmt: skip
        except MalformedError as error:
            self._count_malformed(error)
            return None
        is_own = source == card.number and not self._loopback.is_running  # this NIC's own frame, from the wire
        is_for_this = address in (card.address, BROADCAST) and destination == card.number
        if not is_for_this or source >= self._node_count or is_own:
            counters.strangers += 1  # a switch that has not learned the address floods the frame
            return None
        peer = peers.peer(source)
        standing = peers.classify(now, peer, sender, receiver, self)
        if standing is Standing.STALE:
            counters.stale += 1
            return None
        if self._pending_notices.by_peer:
            self._pending_notices.flush(now, peer)
        if kind == KIND_MESSAGE:
            if standing is Standing.MISDIRECTED and (receiver or self._reliable):
                counters.stale += 1
                prefix = card.frame_prefix(peer, KIND_NACK, REASON_RESTARTED)
                route = peer.route or b""
                peer.send_later(partial(build_answer, prefix, channel, generation, sequence, stamp, route))
                return None
        elif standing is Standing.MISDIRECTED or reason == REASON_RESTARTED:
            counters.stale += 1  # `Peers.classify` has handled the restart
            return None
        answer_prefixes: tuple[bytes, ...] = ()
        if kind == KIND_MESSAGE:
            nack_prefixes = [card.frame_prefix(peer, KIND_NACK, reason) for reason in range(1, _REASON_COUNT)]
            answer_prefixes = (card.frame_prefix(peer, KIND_ACK, 0), *nack_prefixes)
        cached = CachedHeader(peer, kind, reason, answer_prefixes)
        peers.cache_header(frame[:PREFIX_SIZE], cached)
        return cached

    # Implements `protocols.core.peers.PeerEvents`.

    def on_peer_introduced(self, now: int, peer: Peer) -> None:
        self._card.update_prefix(peer)
        self._sender.on_peer_introduced(now, peer)

    def on_peer_restarting(self, peer: Peer) -> None:
        self._counters.restarts += 1
        self._receiver.discard_parts(peer)

    def on_peer_restarted(self, now: int, peer: Peer) -> None:
        unanswered_packets = [row.packet for row in peer.send_table.unanswered_rows()]
        peer.reset_tables(self.settings)
        self._card.update_prefix(peer)
        self._sender.on_peer_restarted(peer, unanswered_packets)
        self._pending_notices.discard(peer)
        self._card.nic.post_completion(peer.number << layout.SUBJECT_BITS | layout.LOST)
        self._sender.send_waiting(now, peer)

    def _count_malformed(self, error: MalformedError) -> None:
        """Count a frame that is dropped as malformed or corrupt."""
        if error.reason == "check":
            self._counters.corrupt += 1
        else:
            self._counters.malformed += 1

    # The hosts.

    def attach(self, host: int, frames: NicEndpointFrames) -> None:
        """Attach a host process. host: number of its slot. The numbers of its endpoints begin at `host` times
        `Settings.numbers_per_host`."""
        self._residency.attach(host, frames)

    def detach(self, now: int, host: int) -> None:
        """Detach a host process, which destroys its endpoints."""
        self._residency.detach(now, host)
        if self._loopback_frames:
            self._loopback.run(now, self.receive)

    def on_doorbell(self, now: int, index: int) -> None:
        card, subject = self._card, index & layout.SUBJECT_MASK
        number = index >> layout.SUBJECT_BITS
        if subject < _SEND_SLOTS:
            endpoint = card.endpoints.get(number)
            if endpoint is None or endpoint.page is None or endpoint.is_leaving:
                # The host process may not have noticed yet that the endpoint has lost its frame to another process. The
                # message is read after the endpoint's next load.
                self._counters.invalid += endpoint is None or endpoint.frames.is_trusted
                return
            if endpoint is card.privileged:
                self._serve_privileged(now, endpoint)
            elif subject not in endpoint.messages:  # otherwise the doorbell is repeated
                self._sender.on_message_written(now, endpoint, subject)
        elif subject == layout.AWAITED:
            self._sender.on_awaited(now, number >> layout.ENDPOINT_BITS)
        else:
            self._residency.on_doorbell(now, number, subject)
            if subject == layout.MAPPED and card.privileged is not None and card.privileged.page is not None:
                self._serve_privileged(now, card.privileged)
        if self._loopback_frames:
            self._loopback.run(now, self.receive)

    def _serve_privileged(self, now: int, endpoint: NicEndpoint) -> None:
        """Process the entries of the privileged endpoint, and send the messages that have waited for routes in them."""
        self._mapping_port.on_doorbell(endpoint)
        if self._has_new_routes:
            self._send_waiting(now)

    # Time.

    def on_timer(self, now: int) -> None:
        mapper, sender = self._mapper, self._sender
        if mapper is not None:
            if not self._is_mapper_started:
                self._is_mapper_started = True
                mapper.start(now)
            if mapper.deadline is not None and mapper.deadline <= now:
                mapper.on_timer(now)
            if self._has_new_routes:
                self._send_waiting(now)
        loiters_until = sender.turn_end
        if loiters_until is not None and loiters_until <= now:
            sender.next_turn(now)
        if sender.scan_at is not None and sender.scan_at <= now:
            sender.scan(now)
            for number in sender.given_up_peers:
                if mapper is not None:
                    mapper.on_unreachable(now, self._adapter.host_of(number))
            sender.given_up_peers.clear()
            if sender.undelivered_notices:
                self._keep_notices(now)
        sender.ask_hosts(now)
        if self._pending_notices.by_peer or not self._has_few_deadlines:
            self._pending_notices.on_timer(now)
            self._has_few_deadlines = not (mapper is not None or self._pending_notices.by_peer)
        if self._leaving:
            self._residency.advance_unloads(now)
        if self._loopback_frames:
            self._loopback.run(now, self.receive)

    def _keep_notices(self, now: int) -> None:
        """Keep the notices that were not delivered. If a keepalive was not, notify the hosts that the peer is
        unreachable."""
        sender = self._sender
        for message in sender.undelivered_notices:
            if message.body == KEEPALIVE:
                sender.reply_watch.end(message.peer)
                self._card.nic.post_completion(message.peer.number << layout.SUBJECT_BITS | layout.LOST)
        self._pending_notices.add(now, [message for message in sender.undelivered_notices if message.body != KEEPALIVE])
        sender.undelivered_notices.clear()
        # So that the next frame of each peer passes `_cache_header`, which sends the notices.
        self._cached_headers.clear()

    def _earliest_deadline(self, deadline: int | None) -> int | None:
        """Return the earliest of the sender's deadline and the deadlines of turns, leaving endpoints, pending notices,
        keepalives and the mapper."""
        if not self._is_mapper_started:
            return 0
        times = [deadline, self._sender.turn_end, self._pending_notices.deadline, self._sender.reply_watch.due_at]
        times += self._residency.deadlines()
        if self._mapper is not None:
            times.append(self._mapper.deadline)
        return min((time for time in times if time is not None), default=None)

    # Routes.

    def _send_mapping(self, frame: bytes) -> None:
        """Send a mapping packet without queueing behind data transfers: otherwise a mapper that waits for the answer
        would conclude that there is no host."""
        self._card.nic.send_later(lambda: frame)

    def install(self, now: int, table: Table) -> None:
        """Install routes in a NIC without a mapper."""
        self._install(table)
        self._send_waiting(now)

    def _install(self, table: Table) -> None:
        """Replace the routes to all NICs; NICs that the table does not contain have no route afterwards."""
        card, max_length = self._card, self.settings.route
        card.is_mapped = True
        self._cached_headers.clear()
        paths = paths_to_functions(self._adapter, table)
        for number in set(self._peers.known) | set(paths):
            if number == card.number or number >= self._node_count:
                continue
            peer, path = self._peers.peer(number), paths.get(number)
            if path is None or len(path.route) > max_length:
                peer.route = None
            else:
                peer.route, peer.address, peer.unreachable_at = path.route, path.address, None
                card.update_prefix(peer)
        self._has_new_routes = True

    def _send_waiting(self, now: int) -> None:
        """Send the messages and notices that have waited for routes."""
        self._has_new_routes = False
        for peer in self._peers.known.values():
            if peer.scheduler:
                self._sender.send_waiting(now, peer)
        self._pending_notices.on_routes(now)
