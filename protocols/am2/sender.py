"""The sending half of the firmware: sends endpoints' messages on channels, resends unanswered packets, and returns
undeliverable messages to their host.

"No per-packet timers": a periodic scan looks for unanswered packets, and only at the NICs that have left any unanswered
(section "Transport protocols"). An undeliverable message is returned through the reply queue of its endpoint
("return-to-sender error model").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import Card
from protocols.am2.codec import (
    FORM_BULK,
    FORM_MEDIUM,
    REASON_BAD_SEGMENT,
    REASON_BAD_TAG,
    REASON_NO_ENDPOINT,
)
from protocols.am2.endpoint_frames import Resident
from protocols.am2.peers import Peer
from protocols.am2.transport import HEADER, PART_AT, Message, Packet, Sending, build_gone, build_message
from protocols.am2.turns import Turns

BAD_ARGUMENTS: Final = 1
BAD_TAG: Final = 3
BAD_SEGMENT: Final = 5
BAD_ENDPOINT: Final = 7
CONGESTION: Final = 8
UNREACHABLE: Final = 9
REPLY_REJECTED: Final = 10
"""The value of `active_messages.am_errors.Status` that the NIC sets for a rejected reply."""

_STATUS: Final = {REASON_BAD_TAG: BAD_TAG, REASON_NO_ENDPOINT: BAD_ENDPOINT, REASON_BAD_SEGMENT: BAD_SEGMENT}
_PLACES: Final = layout.PLACES
_SENT: Final = layout.SENT
_PART: Final = struct.Struct("!II").unpack_from
_MESSAGE: Final = layout.MESSAGE
_UNDER_WAY: Final = layout.UNDER_WAY
_RING: Final = 4  # bits of a slot's number within its ring
_NOTHING: Final = memoryview(b"")
_MAX_OFFSET: Final = 0xFFFF_FFFF  # maximum offset of a bulk message's data in a segment, by the frame format


class Sender:
    """All outgoing messages. held_back: messages that wait while the NIC loiters with another endpoint. scan_at: time
    of the next scan for unanswered packets; None: there are none. given_up: peers that have just been given up.
    undelivered: the NIC's own messages to such peers."""

    __slots__ = (
        "_busy",
        "_card",
        "_counters",
        "_loiter_until",
        "_loitering",
        "_nodes",
        "_queued",
        "_returning",
        "_turn",
        "_unmapped",
        "given_up",
        "held_back",
        "scan_at",
        "undelivered",
    )  # fmt: skip

    def __init__(self, card: Card) -> None:
        self._card = card
        self._counters = card.counters
        self._turn = card.settings.attempt << card.settings.attempts  # nanoseconds that the NIC stays with an endpoint
        self._nodes = len(card.adapter.addresses)
        self._busy: dict[Peer, None] = {}  # peers with unanswered packets
        self._unmapped: dict[tuple[Resident, int], None] = {}  # messages whose data cannot be reached yet
        self._returning: dict[Resident, None] = {}  # endpoints that wait for room to return messages
        self._queued: Turns[Resident] = Turns(1 << card.settings.attempts)
        self.held_back: Final = self._queued.waiting
        self._loitering: Resident | None = None  # the endpoint whose turn it is
        self._loiter_until = 0
        self.scan_at: int | None = None
        self.given_up: list[int] = []
        self.undelivered: list[Message] = []

    @property
    def loiters_until(self) -> int | None:
        """Time of the next endpoint's turn, if one waits; else None."""
        return self._loiter_until if self._queued else None

    def ready(self, now: int, endpoint: Resident, slot: int) -> None:
        """Handle a message that the host has written into a slot."""
        if now < self._loiter_until:
            is_its_turn = self._loitering is endpoint
        else:
            is_its_turn = not self.held_back
            if is_its_turn and self._turn:
                self._loitering = endpoint
                self._loiter_until = now + self._turn
        if is_its_turn:
            self._begin(now, endpoint, slot)
        else:
            self._queued.add(endpoint, slot)

    def go_on(self, now: int) -> None:
        """Begin the next endpoint's turn."""
        queued = self._queued
        while queued and now >= self._loiter_until:
            self._loiter_until = now + self._turn
            self._loitering = endpoint = next(iter(queued.waiting))
            slots = queued.waiting.pop(endpoint)
            while slots:
                self._begin(now, endpoint, slots.popleft())

    def _begin(self, now: int, endpoint: Resident, slot: int) -> None:
        message = endpoint.messages.get(slot) or self._read(endpoint, slot)
        if message is not None:
            self._push(now, message)

    def _read(self, endpoint: Resident, slot: int) -> Message | None:
        """Read what the host has written; None if it is invalid, or its data cannot be reached."""
        card, page, at = self._card, endpoint.page, _PLACES[slot]
        assert page is not None
        if page[at] != layout.READY:
            self._counters.invalid += 1
            return None
        entry = bytes(page[at : at + layout.ENTRY])  # read once, since the host may change it after the checks
        to, length, address, incarnation, form, flags, _, count, origin, _ = _SENT(entry)
        if (
            to >= self._nodes
            or count > layout.MAX_ARGUMENTS
            or origin != endpoint.number
            or flags != slot >> _RING
            or form > FORM_BULK
        ):
            self._counters.invalid += 1
            page[at] = _UNDER_WAY
            self._give_back(endpoint, slot, BAD_ARGUMENTS)
            return None
        body = entry[_MESSAGE : _MESSAGE + HEADER + 4 * count]
        data, offset = _NOTHING, 0
        if form == FORM_BULK:
            offset, total = _PART(body, PART_AT)
            if total != length:  # the destination would never answer
                self._counters.invalid += 1
                page[at] = _UNDER_WAY
                self._give_back(endpoint, slot, BAD_ARGUMENTS)
                return None
        if length and form:
            frames = endpoint.frames
            region = endpoint.number << layout.SUBJECTS | (layout.STAGED if form == FORM_MEDIUM else slot)
            whole = frames.reach(page, region, address, length)
            if whole is None and region in frames.absent:
                frames.absent.remove(region)
                self._counters.invalid += 1
                page[at] = _UNDER_WAY
                self._give_back(endpoint, slot, BAD_ARGUMENTS)
                return None
            if whole is None:
                # "The message refers to memory that has no DMA mapping": it waits for one.
                self._unmapped[endpoint, slot] = None
                if region not in endpoint.requested:
                    endpoint.requested.add(region)
                    card.nic.interrupt(region << layout.SUBJECTS | layout.UNMAPPED)
                return None
            begin = address if form == FORM_MEDIUM else 0
            data = whole[begin : begin + length]
            most = card.settings.medium if form == FORM_MEDIUM else _MAX_OFFSET - offset
            if len(data) != length or length > most:
                self._counters.invalid += 1
                page[at] = _UNDER_WAY
                self._give_back(endpoint, slot, BAD_ARGUMENTS)
                return None
        peer = card.peers.known.get(to) or card.peers.peer(to)
        if incarnation and incarnation != peer.incarnation:
            # A reply to a former incarnation's request, which the present one would take for its own.
            page[at] = _UNDER_WAY
            self._give_back(endpoint, slot, UNREACHABLE)
            return None
        message = Message(endpoint, slot, peer, body)
        page[at] = _UNDER_WAY
        if form == FORM_BULK:
            message.data, message.part = data, card.settings.packet
            message.offset = offset
        elif form:
            message.body = body + card.nic.dma_read((data,))
        endpoint.messages[slot] = message
        return message

    def _push(self, now: int, message: Message) -> None:
        """Send packets of a message as far as channels are free; the rest waits for its turn."""
        peer = message.peer
        if peer.route is None:
            if self._is_lost(now, peer):
                self._fail(message, UNREACHABLE)
            else:
                peer.turns.add(message.endpoint, message.slot)
            return
        if not self._card.settings.reliable:
            self._send_all(message)
            return
        outgoing, waiting = peer.outgoing, peer.turns.waiting
        while not (message.is_begun and message.is_sent):
            if waiting or not outgoing.free:
                peer.turns.add(message.endpoint, message.slot)
                return
            self._send_next(now, message)
            if not message.part:  # a message without parts is one packet
                return

    def _send_next(self, now: int, message: Message) -> None:
        """Send the next packet on a free channel."""
        card, peer = self._card, message.peer
        if message.part or message.taken_back:
            body, data = message.next()
            if data:
                body += card.nic.dma_read((data,))
        else:  # inlines `next`: most messages have one packet
            body, message.is_begun = message.body, True
        outgoing = peer.outgoing
        row = outgoing.begin(now, (message, body))
        assert row is not None
        if outgoing.unanswered == 1:
            self._busy[peer] = None
            if self.scan_at is None:
                self.scan_at = now + card.settings.scan
        message.open += 1
        message.endpoint.open += 1
        self._counters.packets_sent += 1
        if peer.send(
            build_message(peer.prefix, row.channel, row.generation, row.sequence, row.stamp, peer.route or b"", body)
        ):
            card.nic.when_sent(outgoing.hold(row))

    def _send_all(self, message: Message) -> None:
        """Send all packets without channels or acknowledgements."""
        card, peer = self._card, message.peer
        while not message.is_sent:
            body, data = message.next()
            if data:
                body += card.nic.dma_read((data,))
            self._counters.packets_sent += 1
            peer.send(build_message(peer.prefix, 0, 0, 0, 0, peer.route or b"", body))
        self._finish(message)

    def _resend(self, peer: Peer, row: Sending[Packet]) -> None:
        packet = row.packet
        assert packet is not None
        self._counters.packets_resent += 1
        route = peer.route or b""
        if peer.send(
            build_message(peer.prefix, row.channel, row.generation, row.sequence, row.stamp, route, packet[1])
        ):
            self._card.nic.when_sent(peer.outgoing.hold(row))

    # Answers.

    def acknowledged(self, now: int, peer: Peer, channel: int, generation: int, sequence: int, stamp: int) -> None:
        packet = peer.outgoing.answered(now, channel, generation, sequence, stamp)
        if packet is None:
            self._counters.late_answers += 1
            return
        self._counters.acknowledgements_received += 1
        message = packet[0]
        message.open -= 1
        message.endpoint.open -= 1
        if not message.open and (message.status or message.is_sent):
            self._finish(message)
        if peer.turns.waiting:
            self.free(now, peer)

    def undone(
        self, now: int, peer: Peer, channel: int, generation: int, sequence: int, stamp: int, reason: int
    ) -> None:
        packet = peer.outgoing.answered(now, channel, generation, sequence, stamp)
        if packet is None:
            self._counters.late_answers += 1
            return
        self._counters.undone += 1
        message = packet[0]
        message.status = REPLY_REJECTED if message.slot >= layout.REPLIES else _STATUS[reason]
        self._packet_ended(message)
        self.free(now, peer)

    def refused(self, now: int, peer: Peer, channel: int, generation: int, sequence: int, stamp: int) -> None:
        row = peer.outgoing.refused(now, channel, generation, sequence, stamp)
        if row is None or row.packet is None:
            self._counters.late_answers += 1
            return
        self._counters.refusals_received += 1
        message = row.packet[0]
        message.refusals += 1
        most = self._card.settings.congestion
        if message.endpoint.is_leaving:
            self._take_back(peer, row)
        elif most and message.refusals >= most:
            peer.outgoing.take_back(row)
            message.status = CONGESTION
            self._packet_ended(message)
        else:
            return
        self.free(now, peer)

    def free(self, now: int, peer: Peer) -> None:
        """Give waiting messages their turns: the peer may have free channels, or a route."""
        turns, outgoing = peer.turns, peer.outgoing
        if peer.route is None:
            if self._is_lost(now, peer):
                while turns:
                    endpoint, slot = turns.take()
                    if (message := endpoint.messages.get(slot)) is not None:
                        self._fail(message, UNREACHABLE)
            return
        while turns and outgoing.free:
            endpoint, slot = turns.take()
            message = endpoint.messages.get(slot)
            if message is None or message.peer is not peer or message.status or message.is_sent:
                continue  # it has ended meanwhile
            if not self._card.settings.reliable:
                self._send_all(message)
                continue
            self._send_next(now, message)
            if not message.is_sent:
                turns.put_back(endpoint, slot)

    def mapped(self, now: int, number: int) -> None:
        """Continue messages of an endpoint: the host has made memory reachable, or cannot."""
        waiting, self._unmapped = self._unmapped, {}
        for endpoint, slot in waiting:
            if endpoint.number != number or endpoint.page is None or endpoint.is_leaving:
                if endpoint.page is not None and not endpoint.is_leaving:
                    self._unmapped[endpoint, slot] = None
            else:
                self._begin(now, endpoint, slot)

    # Missing answers.

    def scan(self, now: int) -> None:
        """Resend or give up unanswered packets that are due."""
        self.scan_at = None
        for peer in list(self._busy):
            outgoing = peer.outgoing
            lost = self._is_lost(now, peer)
            for row in list(outgoing.due(now)):
                if lost or (peer.route is not None and outgoing.is_hopeless(row)):
                    self._give_up(outgoing.give_up(row))
                    if peer.number not in self.given_up:
                        self.given_up.append(peer.number)
                elif row.refused and row.packet is not None and self._must_yield(peer, row.packet[0].endpoint):
                    message = row.packet[0]
                    self._take_back(peer, row)
                    if not message.endpoint.is_leaving and not message.status:
                        peer.turns.add(message.endpoint, message.slot)
                elif peer.route is not None:
                    outgoing.mark_resent(now, row)
                    self._resend(peer, row)
            if peer.turns:
                self.free(now, peer)
            if not outgoing.unanswered and (peer.route is not None or not peer.turns):
                del self._busy[peer]
        for endpoint in list(self._returning):
            self._show_returns(endpoint)
        if self._busy or self._returning:
            self.scan_at = now + self._card.settings.scan

    def _must_yield(self, peer: Peer, endpoint: Resident) -> bool:
        """Whether a refused packet must give up its channel: its endpoint is leaving, or other messages wait that may
        be another host process's and may be accepted."""
        return endpoint.is_leaving or (bool(peer.turns) and not endpoint.frames.trusted)

    def _is_lost(self, now: int, peer: Peer) -> bool:
        """Whether a peer has been without a route for some time. "No route -> trivially unreachable"; but a route may
        be missing only while the network is mapped again."""
        if peer.route is not None or not self._card.is_mapped:
            return False
        if peer.lost_at is None:
            peer.lost_at = now + self._card.settings.detour
        if now >= peer.lost_at:
            return True
        self._busy[peer] = None
        if self.scan_at is None:
            self.scan_at = now + self._card.settings.scan
        return False

    def _give_up(self, packet: Packet) -> None:
        """Give up a packet that will not be answered."""
        packet[0].status = UNREACHABLE
        self._packet_ended(packet[0])

    def introduced(self, now: int, peer: Peer) -> None:
        """Resend everything to a peer whose incarnation is now known: it has not accepted frames without it."""
        if peer.route is not None:  # otherwise a new route triggers it
            for row in list(peer.outgoing.under_way()):
                peer.outgoing.mark_new(now, row)
                self._resend(peer, row)

    def restarted(self, peer: Peer, under_way: Iterable[Packet | None]) -> None:
        """Fail what was in flight to a restarted peer. A host may send at once when it hears of it: to the new
        incarnation."""
        over = [
            message
            for endpoint in self._card.endpoints.values()
            for message in endpoint.messages.values()
            # The other messages' first parts are lost, or the requests that they reply to.
            if message.peer is peer and not message.status and (message.is_begun or message.slot >= layout.REPLIES)
        ]
        for packet in under_way:
            if packet is not None:
                self._give_up(packet)
        for message in over:
            if message.status:
                continue
            if message.endpoint.page is None:
                message.endpoint.messages.pop(message.slot, None)  # the slot is read again
            else:
                self._fail(message, UNREACHABLE)
        self.undelivered = [message for message in self.undelivered if message.peer is not peer]

    # The ends of messages.

    def leaves(self, endpoint: Resident) -> None:
        """Stop sending for an endpoint that is leaving its frame; refused packets are not sent again."""
        self._queued.drop(endpoint)
        if self._loitering is endpoint:
            self._loitering, self._loiter_until = None, 0  # its turn is over
        for peer in {message.peer: None for message in endpoint.messages.values()}:
            peer.turns.drop(endpoint)
            for row in list(peer.outgoing.under_way()):
                if row.refused and row.packet is not None and row.packet[0].endpoint is endpoint:
                    self._take_back(peer, row)
        self._unmapped = {one: None for one in self._unmapped if one[0] is not endpoint}

    def gone(self, endpoint: Resident) -> None:
        """Forget the messages of a destroyed endpoint; answers to its packets are ignored."""
        self.leaves(endpoint)
        endpoint.messages.clear()
        self._returning.pop(endpoint, None)

    def announce(self, now: int, endpoint: Resident) -> None:
        """Notify the NICs that have sent requests to an endpoint that it is gone: no other event ends requests that it
        accepted without a reply."""
        body = build_gone(endpoint.number)
        for slot, peer in enumerate(endpoint.requesters, layout.SLOTS):
            self.send_own(now, Message(endpoint, slot, peer, body))

    def send_own(self, now: int, message: Message, *, once: bool = False) -> None:
        """Send a message of the NIC itself. once: it is given up if its first packet is not acknowledged."""
        message.endpoint.messages[message.slot] = message
        self._push(now, message)
        if once and message.open:
            outgoing = message.peer.outgoing
            for row in outgoing.under_way():
                if row.packet is not None and row.packet[0] is message:
                    outgoing.mark_last(now, row)

    def left(self, endpoint: Resident, page: memoryview) -> None:
        """Reset unsent messages of an endpoint that leaves its frame, to be sent after its next load."""
        for slot in endpoint.messages:
            page[_PLACES[slot]] = layout.READY
        self._returning.pop(endpoint, None)

    def loaded(self, now: int, endpoint: Resident, page: memoryview) -> None:
        """Send the messages of an endpoint that has been loaded."""
        endpoint.returns = []
        for slot in range(2 * layout.ENTRIES):
            owner = page[_PLACES[slot]]
            if owner == layout.READY:
                self.ready(now, endpoint, slot)
            elif owner == _UNDER_WAY and page[_PLACES[slot] + 1]:
                endpoint.returns.append(slot)
        if endpoint.returns:
            self._show_returns(endpoint)

    def _take_back(self, peer: Peer, row: Sending[Packet]) -> None:
        message, body = peer.outgoing.take_back(row)
        self._counters.taken_back += 1
        message.taken_back = [*message.taken_back, body]
        message.open -= 1
        message.endpoint.open -= 1
        if message.status and not message.open:
            self._finish(message)

    def _packet_ended(self, message: Message) -> None:
        """Account for a packet that is answered, or given up."""
        message.open -= 1
        message.endpoint.open -= 1
        if not message.open and (message.status or message.is_sent):
            self._finish(message)

    def _fail(self, message: Message, status: int) -> None:
        message.status = status
        if not message.open:
            self._finish(message)

    def _finish(self, message: Message) -> None:
        """End a message, all of whose packets are answered."""
        endpoint, slot = message.endpoint, message.slot
        if endpoint.messages.pop(slot, None) is None:
            return
        page = endpoint.page
        if page is None:
            if message.status == UNREACHABLE and slot >= layout.SLOTS:
                self.undelivered.append(message)
                if self.scan_at is None:
                    self.scan_at = 0  # at once
            return
        if message.status:
            self._give_back(endpoint, slot, message.status)
            return
        page[_PLACES[slot]] = layout.ANSWERED if message.part else layout.FREE
        if not endpoint.frames.trusted:
            endpoint.frames.fence()
        if page[layout.WANTS] or message.part:
            page[layout.WANTS] = 0
            self._card.nic.post_completion(endpoint.number << layout.SUBJECTS | slot)

    def _give_back(self, endpoint: Resident, slot: int, status: int) -> None:
        """Return a message to its host through the reply ring."""
        page = endpoint.page
        assert page is not None
        counters = self._counters
        counters.returned += 1
        counters.unreachable += status == UNREACHABLE
        page[_PLACES[slot] + 1] = status
        endpoint.returns.append(slot)
        self._show_returns(endpoint)

    def _show_returns(self, endpoint: Resident) -> None:
        """Return waiting messages as far as the reply ring has room."""
        page, returns = endpoint.page, endpoint.returns
        if page is None:
            return
        while returns:
            place = layout.ARRIVED_REPLIES + endpoint.next_reply
            at = _PLACES[place]
            if page[at]:
                break
            slot = returns.pop(0)
            own = _PLACES[slot]
            layout.HEAD.pack_into(page, at, layout.READY, page[own + 1], self._card.number, slot, 0, 0)
            page[own] = layout.RETURNED
            endpoint.next_reply = endpoint.next_reply + 1 & layout.ENTRIES - 1
            self._card.nic.post_completion(endpoint.number << layout.SUBJECTS | place)
        if not returns:
            self._returning.pop(endpoint, None)
            return
        self._returning[endpoint] = None
        if self.scan_at is None:
            self.scan_at = 0  # at once, and then periodically

    def waiting(self) -> Iterable[str]:
        """Yield a sentence for every peer that has not answered."""
        for peer in self._card.peers.known.values():
            if peer.outgoing.unanswered:
                yield f"node {peer.number}: {peer.outgoing.unanswered} packets are unacknowledged"
            if peer.turns:
                what = "a free channel" if peer.route is not None else "a route"
                yield f"node {peer.number}: {len(peer.turns.waiting)} endpoints wait for {what}"
