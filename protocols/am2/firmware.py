"""AM-II's firmware: dispatch of frames, doorbells and deadlines.

A frame is checked in this order, and dropped and counted at the first check that fails: its route is used up; it is
long enough; its check is right (Myrinet's CRC-8 covers nothing else, and is ignored); it is for this NIC, from a known
peer; it belongs to the last incarnations of both (`protocols.core.peers`). Then the receiver (`receiver`) handles
messages, the sender (`sender`) answers, and on source-routed networks the mapper handles mapping packets.

Without acknowledgements (`Settings.reliable`), a frame meant for incarnation 0 is accepted: it is sent only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from protocols.am2 import codec
from protocols.am2 import page as layout
from protocols.am2.card import BROADCAST, Card, adapted
from protocols.am2.codec import KIND_ACK, KIND_MESSAGE, KIND_NACK, REASON_NO_MAPPING, REASON_RESTARTED
from protocols.am2.counters import Counters
from protocols.am2.mapping_port import MappingPort
from protocols.am2.nic_memory import Frames
from protocols.am2.peers import CachedHeader, Peer
from protocols.am2.pending_notices import PendingNotices
from protocols.am2.receiver import MALFORMED, Receiver, Witness
from protocols.am2.residency import Residency
from protocols.am2.sender import Sender
from protocols.am2.settings import Settings
from protocols.am2.transport import PREFIX_SIZE, PacketClass, build_answer, unpack_answer, unpack_body
from protocols.core.firmware import Adapter, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.peers import Standing
from protocols.myrinet.mapper.follower import Follower, mapper_of, paths_to_functions
from protocols.myrinet.mapper.mapper import Mapper
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import Settings as MapperSettings

_REASONS: Final = REASON_RESTARTED + 1
_PASSES: Final = REASON_NO_MAPPING
"""The last of the temporary reasons."""
_TYPE_AT: Final = 14
_MAPPING: Final = b"\x00\x05"
_ROUTE: Final = 0x80
_SLOTS: Final = 2 * layout.ENTRIES
_NEW: Final = PacketClass.NEW


class Firmware:
    """The firmware of one NIC. Implements `protocols.core.firmware.Firmware`. mapper: finds the routes, on
    source-routed networks."""

    __slots__ = (
        "_adapter",
        "_cached_headers",
        "_card",
        "_counters",
        "_has_begun",
        "_has_news",
        "_held_back",
        "_is_plain",
        "_leaving",
        "_loopback",
        "_looped",
        "_mapper",
        "_mapping_port",
        "_nodes",
        "_peers",
        "_pending_notices",
        "_receiver",
        "_reliable",
        "_residency",
        "_sender",
        "settings",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        frames: Frames | None,
        settings: Settings,
        mapping: MapperSettings | None = None,
        witness: Witness | None = None,
    ) -> None:
        """frames: of the only host; None: hosts `attach`. mapping: settings of the mapper; None: there is no mapper,
        and routes are passed to `install`."""
        self.settings: Final = adapted(settings, adapter)
        self._card = card = Card(adapter, nic, self.settings)
        self._counters = card.counters
        self._sender = Sender(card)
        self._pending_notices = PendingNotices(self._sender)
        self._residency = Residency(card, self._sender)
        if frames is not None:
            self._residency.attach(0, frames)
        self._leaving: Final = self._residency.leaving
        self._receiver = Receiver(card, witness)
        self._reliable = settings.reliable
        self._nodes = len(adapter.addresses)
        self._peers = card.peers
        self._cached_headers = card.peers.cached_headers
        self._loopback = card.peers.loopback
        self._looped = self._loopback.frames
        self._has_begun = True
        self._is_plain = True  # the only deadlines are scans, leaving endpoints and the end of a turn
        self._held_back = self._sender.held_back
        self._has_news = False  # new routes have arrived
        self._mapping_port = MappingPort(card, self._install)
        self._adapter = adapter
        self._mapper: Mapper | Follower | None = None
        if adapter.routed and mapping is not None:
            self._mapper = mapper_of(adapter, self._send_mapping, self._install, mapping)
            self._has_begun = self._is_plain = False

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def mapper(self) -> Mapper | Follower | None:
        return self._mapper

    @property
    def deadline(self) -> int | None:
        deadline = self._sender.scan_at
        is_plain = self._is_plain and not self._leaving and not self._held_back
        return deadline if is_plain else self._first(deadline)

    def counted(self) -> Mapping[str, int]:
        counted = self._counters.counted()
        if self._mapper is not None:
            counted |= {f"mapper_{name}": count for name, count in self._mapper.counted().items()}
        return counted

    def waiting(self) -> list[str]:
        out = [*self._sender.waiting(), *self._pending_notices.waiting()]
        if not self._card.is_mapped:
            out.append("no map of the network has come yet")
        return out + list(self._residency.waiting())

    # Frames.

    def receive(self, now: int, frame: bytes) -> None:
        counters = self._counters
        counters.packets_received += 1
        cached = self._cached_headers.get(frame[:PREFIX_SIZE]) or self._cache_header(now, frame)
        if cached is None:
            return
        if cached.kind != KIND_MESSAGE:
            self._answered(now, cached, frame)
            return
        try:
            channel, generation, sequence, stamp, body = unpack_body(frame)
        except MalformedError as error:
            self._dropped(error)
            return
        peer = cached.peer
        if not self._reliable:
            if self._receiver.deliver(peer, body):
                counters.dropped += 1
            return
        incoming = peer.incoming
        if channel >= incoming.channels:
            counters.malformed += 1
            return
        packet_class = incoming.classify(channel, generation, sequence, stamp)
        if packet_class is _NEW:
            reason = self._receiver.deliver(peer, body)
            if reason == MALFORMED:
                counters.malformed += 1
                return
            if not reason or reason > _PASSES:
                incoming.take(channel, reason)
                counters.packets_taken += not reason
            else:
                incoming.refuse(channel, stamp)
        elif packet_class is PacketClass.AGAIN:
            counters.duplicates += 1
            reason = incoming.answer(channel)
        else:
            counters.old += 1
            return
        counters.acknowledgements_sent += 1
        begin = cached.answers[reason]
        peer.send_later(partial(build_answer, begin, channel, generation, sequence, stamp, peer.route or b""))

    def _answered(self, now: int, cached: CachedHeader, frame: bytes) -> None:
        """Handle an answer."""
        try:
            channel, generation, sequence, stamp = unpack_answer(frame)
        except MalformedError as error:
            self._dropped(error)
            return
        peer = cached.peer
        if cached.kind == KIND_ACK:
            self._sender.acknowledged(now, peer, channel, generation, sequence, stamp)
        elif cached.reason <= _PASSES:
            self._sender.refused(now, peer, channel, generation, sequence, stamp)
        else:
            self._sender.undone(now, peer, channel, generation, sequence, stamp, cached.reason)
        if self._leaving:
            self._residency.advance_unloads(now)
            if self._looped:
                self._loopback.run(now, self.receive)  # of an endpoint loaded into the frame that another has left

    def _cache_header(self, now: int, frame: bytes) -> CachedHeader | None:
        """Make the cached header of a frame that has no cached one: the first of its kind since the peer's last change of
        incarnation. None: the frame is dropped, or was the mapper's."""
        card, counters, peers = self._card, self._counters, self._peers
        if len(frame) > _TYPE_AT + 2 and frame[_TYPE_AT : _TYPE_AT + 2] == _MAPPING:
            if self._mapper is not None:
                self._mapper.receive(now, frame)
                if self._has_news:
                    self._go(now)
                return None
            if card.privileged is not None:
                self._mapping_port.receive(frame)
                return None
        try:
            if len(frame) > _TYPE_AT and frame[_TYPE_AT] & _ROUTE:
                raise MalformedError("route")
            kind = codec.kind_of(frame)
            if kind == KIND_MESSAGE:
                to, _, _, source, destination, sender, receiver, channel, generation, sequence, stamp, *_ = (
                    codec.unpack_message(frame[:-1])
                )
                reason = 0
            else:
                (
                    to, _, kind, reason, source, destination, sender, receiver, channel, generation, sequence, stamp, _,
                ) = codec.unpack_answer(frame[:-1])  # fmt: skip
        except MalformedError as error:
            self._dropped(error)
            return None
        is_own = source == card.number and not self._loopback.is_running  # returned from a wire
        if to not in (card.address, BROADCAST) or destination != card.number or source >= self._nodes or is_own:
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
                begin = card.prefix(peer, KIND_NACK, REASON_RESTARTED)
                route = peer.route or b""
                peer.send_later(partial(build_answer, begin, channel, generation, sequence, stamp, route))
                return None
        elif standing is Standing.MISDIRECTED or reason == REASON_RESTARTED:
            counters.stale += 1  # `Peers.classify` has handled the restart
            return None
        answers: tuple[bytes, ...] = ()
        if kind == KIND_MESSAGE:
            refusals = [card.prefix(peer, KIND_NACK, reason) for reason in range(1, _REASONS)]
            answers = (card.prefix(peer, KIND_ACK, 0), *refusals)
        cached = CachedHeader(peer, kind, reason, answers)
        peers.cache_header(frame[:PREFIX_SIZE], cached)
        return cached

    # Implements `protocols.core.peers.PeerEvents`.

    def introduced(self, now: int, peer: Peer) -> None:
        self._card.update_prefix(peer)
        self._sender.introduced(now, peer)

    def restarting(self, peer: Peer) -> None:
        self._counters.restarts += 1
        self._receiver.forget(peer)

    def restarted(self, now: int, peer: Peer) -> None:
        under_way = [row.packet for row in peer.outgoing.under_way()]
        peer.forget(self.settings)
        self._card.update_prefix(peer)
        self._sender.restarted(peer, under_way)
        self._pending_notices.forget(peer)
        self._card.nic.post_completion(peer.number << layout.SUBJECTS | layout.RESTARTED)
        self._sender.free(now, peer)

    def _dropped(self, error: MalformedError) -> None:
        if error.reason == "check":
            self._counters.corrupt += 1
        else:
            self._counters.malformed += 1

    # The hosts.

    def attach(self, host: int, frames: Frames) -> None:
        """Attach a host process. The numbers of its endpoints begin at `host` times `Settings.numbers`."""
        self._residency.attach(host, frames)

    def detach(self, now: int, host: int) -> None:
        """Detach a host process, which destroys its endpoints."""
        self._residency.detach(now, host)
        if self._looped:
            self._loopback.run(now, self.receive)

    def on_doorbell(self, now: int, index: int) -> None:
        card, subject = self._card, index & layout.SUBJECT
        number = index >> layout.SUBJECTS
        if subject < _SLOTS:
            endpoint = card.endpoints.get(number)
            if endpoint is None or endpoint.page is None or endpoint.is_leaving:
                # A host may not know yet that its endpoint has lost its frame to another host: the message is read when
                # the endpoint returns.
                self._counters.invalid += endpoint is None or endpoint.frames.trusted
                return
            if endpoint is card.privileged:
                self._mapping_port.on_doorbell(endpoint)
                if self._has_news:
                    self._go(now)
            elif subject not in endpoint.messages:  # else it has rung for that message before
                self._sender.ready(now, endpoint, subject)
        else:
            self._residency.on_doorbell(now, number, subject)
            if subject == layout.MAPPED and card.privileged is not None and card.privileged.page is not None:
                self._mapping_port.on_doorbell(card.privileged)
        if self._looped:
            self._loopback.run(now, self.receive)

    # Time.

    def on_timer(self, now: int) -> None:
        mapper, sender = self._mapper, self._sender
        if mapper is not None:
            if not self._has_begun:
                self._has_begun = True
                mapper.start(now)
            if mapper.deadline is not None and mapper.deadline <= now:
                mapper.on_timer(now)
            if self._has_news:
                self._go(now)
        loiters_until = sender.loiters_until
        if loiters_until is not None and loiters_until <= now:
            sender.go_on(now)
        if sender.scan_at is not None and sender.scan_at <= now:
            sender.scan(now)
            for number in sender.given_up:
                if mapper is not None:
                    mapper.unreachable(now, number)
            sender.given_up.clear()
            if sender.undelivered:
                self._pending_notices.keep(now, sender.undelivered)
                sender.undelivered.clear()
                self._cached_headers.clear()  # so that the next frame of each peer is checked completely
        if self._pending_notices.by_peer or not self._is_plain:
            self._pending_notices.on_timer(now)
            self._is_plain = not (mapper is not None or self._pending_notices.by_peer)
        if self._leaving:
            self._residency.advance_unloads(now)
        if self._looped:
            self._loopback.run(now, self.receive)

    def _first(self, deadline: int | None) -> int | None:
        """Return the earliest deadline, including attempts, leaving endpoints, pending notices and the mapper."""
        if not self._has_begun:
            return 0
        times = [deadline, self._sender.loiters_until, self._pending_notices.deadline]
        times += self._residency.deadlines()
        if self._mapper is not None:
            times.append(self._mapper.deadline)
        return min((when for when in times if when is not None), default=None)

    # Routes.

    def _send_mapping(self, frame: bytes) -> None:
        """Send a mapper's frame, without queueing behind data transfers: whoever waits for the answer would otherwise
        conclude that nobody is there."""
        self._card.nic.send_later(lambda: frame)

    def install(self, now: int, table: Table) -> None:
        """Install routes, in a network without a mapper."""
        self._install(table)
        self._go(now)

    def _install(self, table: Table) -> None:
        """Replace the routes to all reachable NICs."""
        card, longest = self._card, self.settings.route
        card.is_mapped = True
        self._cached_headers.clear()
        paths = paths_to_functions(self._adapter, table)
        for number in set(self._peers.known) | set(paths):
            if number == card.number or number >= self._nodes:
                continue
            peer, path = self._peers.peer(number), paths.get(number)
            if path is None or len(path.route) > longest:
                peer.route = None
            else:
                peer.route, peer.address, peer.lost_at = path.route, path.address, None
                card.update_prefix(peer)
        self._has_news = True

    def _go(self, now: int) -> None:
        """Send what has waited for routes."""
        self._has_news = False
        for peer in self._peers.known.values():
            if peer.turns:
                self._sender.free(now, peer)
        self._pending_notices.mapped(now)
