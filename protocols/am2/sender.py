"""The sending half of the firmware: it sends endpoints' messages on channels, resends unanswered packets, and returns
undeliverable messages to their hosts.

"No per-packet timers": a periodic scan looks for unanswered packets that are due, in the send tables of the peers that
have any (section "Transport protocols"). An undeliverable message is returned through the reply ring of its endpoint
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
from protocols.am2.endpoint_scheduler import EndpointScheduler
from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.peers import Peer
from protocols.am2.reply_watch import ReplyWatch
from protocols.am2.transport import (
    KEEPALIVE,
    MESSAGE_HEADER_SIZE,
    OFFSET_AND_TOTAL_AT,
    Message,
    Packet,
    SendRow,
    build_gone,
    build_lost_reply,
    build_message,
)

# Values of `active_messages.am_errors.Status`.
BAD_ARGUMENTS: Final = 1
BAD_TAG: Final = 3
BAD_SEGMENT: Final = 5
BAD_ENDPOINT: Final = 7
CONGESTION: Final = 8
UNREACHABLE: Final = 9
REPLY_REJECTED: Final = 10

_STATUS: Final = {REASON_BAD_TAG: BAD_TAG, REASON_NO_ENDPOINT: BAD_ENDPOINT, REASON_BAD_SEGMENT: BAD_SEGMENT}
_SLOT_OFFSETS: Final = layout.SLOT_OFFSETS
_READ_SEND_ENTRY: Final = layout.READ_SEND_ENTRY
_UNPACK_OFFSET_AND_TOTAL: Final = struct.Struct("!II").unpack_from
_MESSAGE_OFFSET: Final = layout.MESSAGE_OFFSET
_IN_FLIGHT: Final = layout.IN_FLIGHT
_RING_BITS: Final = 4  # bits of a slot's number within its ring
_EMPTY: Final = memoryview(b"")
_MAX_OFFSET: Final = 0xFFFF_FFFF  # maximum offset of a bulk message's data in a segment, by the frame format


class Sender:
    """All outgoing messages. waiting_slots: slots of messages that wait while the NIC loiters with another endpoint, by
    endpoint. scan_at: time of the next scan for unanswered packets; None: no scan. given_up_peers: numbers of the peers
    to which packets have been given up. undelivered_notices: the NIC's own messages that have been given up, or cannot
    be sent now. The firmware clears both lists. reply_watch: watch of the peers that owe replies."""

    __slots__ = (
        "_busy_peers",
        "_card",
        "_counters",
        "_node_count",
        "_returning_endpoints",
        "_scheduler",
        "_turn_end",
        "_turn_length",
        "_turn_owner",
        "_unmapped_messages",
        "given_up_peers",
        "reply_watch",
        "scan_at",
        "undelivered_notices",
        "waiting_slots",
    )  # fmt: skip

    def __init__(self, card: Card) -> None:
        self._card = card
        self._counters = card.counters
        self._turn_length = card.settings.attempt << card.settings.attempts  # nanoseconds of loitering
        self._node_count = len(card.adapter.addresses)
        self._busy_peers: dict[Peer, None] = {}  # peers with unanswered packets
        self._unmapped_messages: dict[tuple[NicEndpoint, int], None] = {}  # slots of messages whose data is not mapped
        self._returning_endpoints: dict[NicEndpoint, None] = {}  # endpoints that wait for room to return messages
        self._scheduler: EndpointScheduler[NicEndpoint] = EndpointScheduler(1 << card.settings.attempts)
        self.waiting_slots: Final = self._scheduler.waiting_slots
        self._turn_owner: NicEndpoint | None = None
        self._turn_end = 0
        self.scan_at: int | None = None
        self.given_up_peers: list[int] = []
        self.undelivered_notices: list[Message] = []
        self.reply_watch: Final = ReplyWatch(card.settings.keepalive if card.settings.reliable else 0)

    @property
    def turn_end(self) -> int | None:
        """Time at which the next endpoint's turn begins; None if no endpoint waits."""
        return self._turn_end if self._scheduler else None

    def on_message_written(self, now: int, endpoint: NicEndpoint, slot: int) -> None:
        """Handle a message that the host has written into a slot."""
        if now < self._turn_end:
            is_its_turn = self._turn_owner is endpoint
        else:
            is_its_turn = not self.waiting_slots
            if is_its_turn and self._turn_length:
                self._turn_owner = endpoint
                self._turn_end = now + self._turn_length
        if not is_its_turn:
            self._scheduler.add(endpoint, slot)
            return
        self._send_slot(now, endpoint, slot)

    def next_turn(self, now: int) -> None:
        """Begin the next endpoint's turn."""
        waiting_slots = self.waiting_slots
        while waiting_slots and now >= self._turn_end:
            self._turn_end = now + self._turn_length
            self._turn_owner = endpoint = next(iter(waiting_slots))
            slots = waiting_slots.pop(endpoint)
            while slots:
                self._send_slot(now, endpoint, slots.popleft())

    def _send_slot(self, now: int, endpoint: NicEndpoint, slot: int) -> None:
        """Send the message in a slot; read it first, unless it is in progress."""
        message = endpoint.messages.get(slot) or self._read(endpoint, slot)
        if message is not None:
            self._send_packets(now, message)

    def _read(self, endpoint: NicEndpoint, slot: int) -> Message | None:
        """Read the message that the host has written into a slot. Returns None if the message is returned to the host,
        as invalid or unreachable, or if its data is not mapped yet."""
        card, page, entry_offset = self._card, endpoint.page, _SLOT_OFFSETS[slot]
        assert page is not None
        if page[entry_offset] != layout.READY:
            self._counters.invalid += 1
            return None
        # Copied once, since the host may change the entry after the checks.
        entry = bytes(page[entry_offset : entry_offset + layout.ENTRY_SIZE])
        node, length, address, incarnation, form, flags, _, count, origin, _ = _READ_SEND_ENTRY(entry)
        if (
            node >= self._node_count
            or count > layout.MAX_ARGUMENTS
            or origin != endpoint.number
            or flags != slot >> _RING_BITS
            or form > FORM_BULK
        ):
            self._return_invalid(endpoint, page, slot)
            return None
        body = entry[_MESSAGE_OFFSET : _MESSAGE_OFFSET + MESSAGE_HEADER_SIZE + 4 * count]
        data, offset = _EMPTY, 0
        if form == FORM_BULK:
            offset, total = _UNPACK_OFFSET_AND_TOTAL(body, OFFSET_AND_TOTAL_AT)
            if total != length:  # the destination would wait for the rest, and never answer
                self._return_invalid(endpoint, page, slot)
                return None
        if length and form:
            frames = endpoint.frames
            region = endpoint.number << layout.SUBJECT_BITS | (layout.SEND_STAGING if form == FORM_MEDIUM else slot)
            view = frames.region_view(page, region, address, length)
            if view is None and region in frames.absent_regions:
                frames.absent_regions.remove(region)
                self._return_invalid(endpoint, page, slot)
                return None
            if view is None:
                # A message that refers to memory without a DMA mapping waits for one.
                self._unmapped_messages[endpoint, slot] = None
                if region not in endpoint.requested_regions:
                    endpoint.requested_regions.add(region)
                    card.nic.interrupt(region << layout.SUBJECT_BITS | layout.UNMAPPED)
                return None
            begin = address if form == FORM_MEDIUM else 0
            data = view[begin : begin + length]
            max_length = card.settings.medium if form == FORM_MEDIUM else _MAX_OFFSET - offset
            if len(data) != length or length > max_length:
                self._return_invalid(endpoint, page, slot)
                return None
        peer = card.peers.known.get(node) or card.peers.peer(node)
        if incarnation and incarnation != peer.incarnation:
            # The reply is to a request of a former incarnation; the present one could take it for a reply to its own.
            page[entry_offset] = _IN_FLIGHT
            self._return_message(endpoint, slot, UNREACHABLE)
            return None
        message = Message(endpoint, slot, peer, body)
        page[entry_offset] = _IN_FLIGHT
        if form == FORM_BULK:
            message.data, message.packet_size, message.offset = data, card.settings.packet, offset
        elif form:
            message.body = body + card.nic.dma_read((data,))
        endpoint.messages[slot] = message
        return message

    def _send_packets(self, now: int, message: Message) -> None:
        """Send packets of a message while channels are free; the rest of the message waits in the peer's scheduler."""
        peer = message.peer
        if peer.route is None:
            if self._is_unreachable(now, peer):
                self._fail(message, UNREACHABLE)
            else:
                peer.scheduler.add(message.endpoint, message.slot)
            return
        if not self._card.settings.reliable:
            self._send_all(message)
            return
        send_table, waiting_slots = peer.send_table, peer.scheduler.waiting_slots
        while not (message.is_begun and message.is_sent):
            if waiting_slots or not send_table.free_rows:
                peer.scheduler.add(message.endpoint, message.slot)
                return
            self._send_next(now, message)
            if not message.packet_size:  # not a bulk message: it is one packet
                return

    def _send_next(self, now: int, message: Message) -> None:
        """Send the next packet on a free channel."""
        card, peer = self._card, message.peer
        if message.packet_size or message.withdrawn:
            body, data = message.next_packet()
            if data:
                body += card.nic.dma_read((data,))
        else:  # `next_packet`, inlined, since most messages have one packet
            body, message.is_begun = message.body, True
        send_table = peer.send_table
        row = send_table.begin(now, (message, body))
        assert row is not None
        if send_table.unanswered_count == 1:
            self._busy_peers[peer] = None
            if self.scan_at is None:
                self.scan_at = now + card.settings.scan
        message.unanswered_count += 1
        message.endpoint.unanswered_count += 1
        self._counters.packets_sent += 1
        if peer.send(
            build_message(
                peer.message_prefix, row.channel, row.generation, row.sequence, row.stamp, peer.route or b"", body
            )
        ):
            card.nic.when_sent(send_table.hold_timer(row))

    def _send_all(self, message: Message) -> None:
        """Send all packets of a message, without channels and acknowledgements."""
        card, peer = self._card, message.peer
        while not message.is_sent:
            body, data = message.next_packet()
            if data:
                body += card.nic.dma_read((data,))
            self._counters.packets_sent += 1
            peer.send(build_message(peer.message_prefix, 0, 0, 0, 0, peer.route or b"", body))
        self._finish(message)

    def _resend(self, peer: Peer, row: SendRow[Packet]) -> None:
        packet = row.packet
        assert packet is not None
        self._counters.packets_resent += 1
        route = peer.route or b""
        if peer.send(
            build_message(peer.message_prefix, row.channel, row.generation, row.sequence, row.stamp, route, packet[1])
        ):
            self._card.nic.when_sent(peer.send_table.hold_timer(row))

    # Answers.

    def on_ack(self, now: int, peer: Peer, channel: int, generation: int, sequence: int, stamp: int) -> None:
        """Handle an ACK."""
        packet = peer.send_table.on_answer(now, channel, generation, sequence, stamp)
        if packet is None:
            self._counters.late_answers += 1
            return
        self._counters.acknowledgements_received += 1
        message = packet[0]
        message.unanswered_count -= 1
        message.endpoint.unanswered_count -= 1
        # Only a bulk message has further packets to be sent.
        if not message.unanswered_count and (not message.packet_size or message.status or message.is_sent):
            self._finish(message)
        if peer.scheduler.waiting_slots:
            self.send_waiting(now, peer)

    def on_permanent_nack(
        self, now: int, peer: Peer, channel: int, generation: int, sequence: int, stamp: int, reason: int
    ) -> None:
        """Handle a NACK for a permanent reason, which undoes the packet's message."""
        packet = peer.send_table.on_answer(now, channel, generation, sequence, stamp)
        if packet is None:
            self._counters.late_answers += 1
            return
        self._counters.undone += 1
        message = packet[0]
        message.status = REPLY_REJECTED if message.slot >= layout.REPLIES else _STATUS[reason]
        self._packet_ended(message)
        self.send_waiting(now, peer)

    def on_temporary_nack(self, now: int, peer: Peer, channel: int, generation: int, sequence: int, stamp: int) -> None:
        """Handle a NACK for a temporary reason: the packet is resent later or withdrawn, or its message is returned."""
        row = peer.send_table.on_refusal(now, channel, generation, sequence, stamp)
        if row is None or row.packet is None:
            self._counters.late_answers += 1
            return
        self._counters.refusals_received += 1
        message = row.packet[0]
        message.refusal_count += 1
        max_refusals = self._card.settings.congestion
        if message.endpoint.is_leaving:
            self._withdraw(peer, row)
        elif max_refusals and message.refusal_count >= max_refusals:
            peer.send_table.withdraw(row)
            message.status = CONGESTION
            self._packet_ended(message)
        else:
            return
        self.send_waiting(now, peer)

    def send_waiting(self, now: int, peer: Peer) -> None:
        """Send messages that wait for a channel or a route to a peer, as far as possible."""
        scheduler, send_table = peer.scheduler, peer.send_table
        if peer.route is None:
            if self._is_unreachable(now, peer):
                while scheduler:
                    endpoint, slot = scheduler.take()
                    if (message := endpoint.messages.get(slot)) is not None:
                        self._fail(message, UNREACHABLE)
            return
        while scheduler and send_table.free_rows:
            endpoint, slot = scheduler.take()
            message = endpoint.messages.get(slot)
            if message is None or message.peer is not peer or message.status or message.is_sent:
                continue  # the message has ended, or all its packets have been sent
            if not self._card.settings.reliable:
                self._send_all(message)
                continue
            self._send_next(now, message)
            if not message.is_sent:
                scheduler.put_back(endpoint, slot)

    def on_regions_mapped(self, now: int, number: int) -> None:
        """Send the messages of an endpoint that wait for a mapping, after the host has answered a request for one.
        number: the endpoint's."""
        unmapped_messages, self._unmapped_messages = self._unmapped_messages, {}
        for endpoint, slot in unmapped_messages:
            if endpoint.page is None or endpoint.is_leaving:
                continue  # the slot is read again after the endpoint's next load
            if endpoint.number == number:
                self._send_slot(now, endpoint, slot)
            else:
                self._unmapped_messages[endpoint, slot] = None

    # Missing answers.

    def scan(self, now: int) -> None:
        """Resend or give up unanswered packets that are due, and return messages for which the reply ring had no
        room."""
        self.scan_at = None
        for peer in list(self._busy_peers):
            send_table = peer.send_table
            is_unreachable = self._is_unreachable(now, peer)
            for row in list(send_table.due_rows(now)):
                if is_unreachable or (peer.route is not None and send_table.is_exhausted(row)):
                    self._give_up(send_table.give_up(row))
                    if peer.number not in self.given_up_peers:
                        self.given_up_peers.append(peer.number)
                elif row.is_refused and row.packet is not None and self._must_yield(peer, row.packet[0].endpoint):
                    message = row.packet[0]
                    self._withdraw(peer, row)
                    if not message.endpoint.is_leaving and not message.status:
                        peer.scheduler.add(message.endpoint, message.slot)
                elif peer.route is not None:
                    send_table.mark_resent(now, row)
                    self._resend(peer, row)
            if peer.scheduler:
                self.send_waiting(now, peer)
            if not send_table.unanswered_count and (peer.route is not None or not peer.scheduler):
                del self._busy_peers[peer]
        for endpoint in list(self._returning_endpoints):
            self._post_returns(endpoint)
        if self._busy_peers or self._returning_endpoints:
            self.scan_at = now + self._card.settings.scan
        if self.reply_watch.new_peers:
            self.reply_watch.begin(now)

    def ask_hosts(self, now: int) -> None:
        """Ask the hosts whether they wait for the peers that owe replies and have been silent, if a check is due."""
        if self.reply_watch.due_at is not None and self.reply_watch.due_at <= now:
            for peer in self.reply_watch.silent_peers(now):
                self._card.nic.post_completion(peer.number << layout.SUBJECT_BITS | layout.OWED)

    def on_awaited(self, now: int, number: int) -> None:
        """Handle a host's answer that it waits for the replies of a peer."""
        peer = self._card.peers.known.get(number)
        if peer is None:
            self._counters.invalid += 1
        elif (endpoint := self.reply_watch.on_awaited(now, peer)) is not None:
            self.send_own(now, Message(endpoint, layout.SLOTS, peer, KEEPALIVE))

    def _must_yield(self, peer: Peer, endpoint: NicEndpoint) -> bool:
        """Whether a refused packet must release its channel, since its endpoint is leaving its frame, or since messages
        of other host processes may wait for a channel."""
        return endpoint.is_leaving or (bool(peer.scheduler) and not endpoint.frames.is_trusted)

    def _is_unreachable(self, now: int, peer: Peer) -> bool:
        """Return whether a peer has had no route for `Settings.detour`; if a route is missing for less, set the time at
        which the peer becomes unreachable, and scan until then. In the paper, a peer without a route is unreachable at
        once; but a route may be missing only while the network is mapped again."""
        if peer.route is not None or not self._card.is_mapped:
            return False
        if peer.unreachable_at is None:
            peer.unreachable_at = now + self._card.settings.detour
        if now >= peer.unreachable_at:
            return True
        self._busy_peers[peer] = None
        if self.scan_at is None:
            self.scan_at = now + self._card.settings.scan
        return False

    def _give_up(self, packet: Packet) -> None:
        """End a packet that has been given up."""
        packet[0].status = UNREACHABLE
        self._packet_ended(packet[0])

    def on_peer_introduced(self, now: int, peer: Peer) -> None:
        """Resend all unanswered packets to a peer whose incarnation is now known. The peer has dropped the earlier
        frames, which did not name its incarnation."""
        if peer.route is not None:  # otherwise the packets are resent when a route is known
            for row in list(peer.send_table.unanswered_rows()):
                peer.send_table.mark_first(now, row)
                self._resend(peer, row)

    def on_peer_restarted(self, peer: Peer, unanswered_packets: Iterable[Packet | None]) -> None:
        """Fail the messages in progress to a restarted peer; requests of which nothing has been sent go to its new
        incarnation. unanswered_packets: packets of the former send table."""
        # Collected first, since a notified host may at once send to the new incarnation.
        failed = [
            message
            for endpoint in self._card.endpoints.values()
            for message in endpoint.messages.values()
            # A begun message has lost packets; the request of a reply is lost.
            if message.peer is peer and not message.status and (message.is_begun or message.slot >= layout.REPLIES)
        ]
        for packet in unanswered_packets:
            if packet is not None:
                self._give_up(packet)
        for message in failed:
            if message.status:
                continue
            if message.endpoint.page is None:
                message.endpoint.messages.pop(message.slot, None)  # the slot is read again after the next load
            else:
                self._fail(message, UNREACHABLE)
        self.undelivered_notices = [message for message in self.undelivered_notices if message.peer is not peer]
        self.reply_watch.end(peer)

    # The ends of messages.

    def stop_sending(self, endpoint: NicEndpoint) -> None:
        """Stop sending for an endpoint that is leaving its frame, and withdraw its refused packets."""
        self._scheduler.remove(endpoint)
        if self._turn_owner is endpoint:
            self._turn_owner, self._turn_end = None, 0
        for peer in {message.peer: None for message in endpoint.messages.values()}:
            peer.scheduler.remove(endpoint)
            for row in list(peer.send_table.unanswered_rows()):
                if row.is_refused and row.packet is not None and row.packet[0].endpoint is endpoint:
                    self._withdraw(peer, row)
        self._unmapped_messages = {
            (owner, slot): None for owner, slot in self._unmapped_messages if owner is not endpoint
        }

    def drop_messages(self, endpoint: NicEndpoint) -> None:
        """Drop the messages of a destroyed endpoint; answers to its packets are ignored."""
        self.stop_sending(endpoint)
        endpoint.messages.clear()
        self._returning_endpoints.pop(endpoint, None)

    def announce_gone(self, now: int, endpoint: NicEndpoint) -> None:
        """Notify the NICs that have sent requests to a destroyed endpoint. Nothing else ends the requests that the
        endpoint has accepted and not replied to."""
        body = build_gone(endpoint.number)
        for slot, peer in enumerate(endpoint.requesters, layout.SLOTS):
            self.send_own(now, Message(endpoint, slot, peer, body))

    def send_own(self, now: int, message: Message, *, once: bool = False) -> None:
        """Send a message of the NIC itself. once: if it can be sent at once, do not resend it."""
        message.endpoint.messages[message.slot] = message
        self._send_packets(now, message)
        if once and message.unanswered_count:
            send_table = message.peer.send_table
            for row in send_table.unanswered_rows():
                if row.packet is not None and row.packet[0] is message:
                    send_table.mark_final(now, row)

    def reset_unsent(self, endpoint: NicEndpoint, page: memoryview) -> None:
        """Mark the unfinished messages in the page of an endpoint that leaves its frame, to be sent after its next
        load."""
        for slot in endpoint.messages:
            page[_SLOT_OFFSETS[slot]] = layout.READY
        self._returning_endpoints.pop(endpoint, None)

    def on_loaded(self, now: int, endpoint: NicEndpoint, page: memoryview) -> None:
        """Send the waiting messages of an endpoint that has been loaded, and return the undeliverable ones."""
        endpoint.returning_slots = []
        for slot in range(2 * layout.RING_SIZE):
            owner = page[_SLOT_OFFSETS[slot]]
            if owner == layout.READY:
                self.on_message_written(now, endpoint, slot)
            elif owner == _IN_FLIGHT and page[_SLOT_OFFSETS[slot] + 1]:
                endpoint.returning_slots.append(slot)
        if endpoint.returning_slots:
            self._post_returns(endpoint)

    def _withdraw(self, peer: Peer, row: SendRow[Packet]) -> None:
        """Withdraw a refused packet, to be sent on another channel later."""
        message, body = peer.send_table.withdraw(row)
        self._counters.taken_back += 1
        message.withdrawn = [*message.withdrawn, body]
        message.unanswered_count -= 1
        message.endpoint.unanswered_count -= 1
        if message.status and not message.unanswered_count:
            self._finish(message)

    def _packet_ended(self, message: Message) -> None:
        """Account for a packet that has been answered or given up; end its message with the last packet."""
        message.unanswered_count -= 1
        message.endpoint.unanswered_count -= 1
        if not message.unanswered_count and (message.status or message.is_sent):
            self._finish(message)

    def _fail(self, message: Message, status: int) -> None:
        """Fail a message, as soon as no packet of it is unanswered."""
        message.status = status
        if not message.unanswered_count:
            self._finish(message)

    def _finish(self, message: Message) -> None:
        """End a message that has no unanswered packets."""
        endpoint, slot = message.endpoint, message.slot
        if endpoint.messages.pop(slot, None) is None:
            return
        page = endpoint.page
        if page is None:
            if message.status == UNREACHABLE and slot >= layout.SLOTS:
                self.undelivered_notices.append(message)
                if self.scan_at is None:
                    self.scan_at = 0  # immediately
            return
        if message.status:
            if slot >= layout.REPLIES:
                # Sent when a frame of the peer arrives, from a separate NIC endpoint, which is never unloaded.
                sender = NicEndpoint(endpoint.number, endpoint.frames)
                body = build_lost_reply(message.body)
                self.undelivered_notices.append(Message(sender, layout.SLOTS, message.peer, body))
                if self.scan_at is None:
                    self.scan_at = 0
            self._return_message(endpoint, slot, message.status)
            return
        if slot < layout.REPLIES and not message.peer.is_watched:
            self.reply_watch.on_accepted(message.peer, endpoint)
        page[_SLOT_OFFSETS[slot]] = layout.ANSWERED if message.packet_size else layout.FREE
        if not endpoint.frames.is_trusted:
            endpoint.frames.fence()
        if page[layout.NOTIFY_OFFSET] or message.packet_size:
            page[layout.NOTIFY_OFFSET] = 0
            self._card.nic.post_completion(endpoint.number << layout.SUBJECT_BITS | slot)

    def _return_invalid(self, endpoint: NicEndpoint, page: memoryview, slot: int) -> None:
        """Return an invalid message to its host."""
        self._counters.invalid += 1
        page[_SLOT_OFFSETS[slot]] = _IN_FLIGHT
        self._return_message(endpoint, slot, BAD_ARGUMENTS)

    def _return_message(self, endpoint: NicEndpoint, slot: int, status: int) -> None:
        """Return a message to its host through the reply ring."""
        page = endpoint.page
        assert page is not None
        counters = self._counters
        counters.returned += 1
        counters.unreachable += status == UNREACHABLE
        page[_SLOT_OFFSETS[slot] + 1] = status
        endpoint.returning_slots.append(slot)
        self._post_returns(endpoint)

    def _post_returns(self, endpoint: NicEndpoint) -> None:
        """Return waiting messages as far as the reply ring has room."""
        page, returning_slots = endpoint.page, endpoint.returning_slots
        if page is None:
            return
        while returning_slots:
            reply_slot = layout.ARRIVED_REPLIES + endpoint.next_reply
            reply_offset = _SLOT_OFFSETS[reply_slot]
            if page[reply_offset]:
                break
            slot = returning_slots.pop(0)
            entry_offset = _SLOT_OFFSETS[slot]
            status = page[entry_offset + 1]
            layout.HEAD.pack_into(page, reply_offset, layout.READY, status, self._card.number, slot, 0, 0)
            page[entry_offset] = layout.RETURNED
            endpoint.next_reply = endpoint.next_reply + 1 & layout.RING_SIZE - 1
            self._card.nic.post_completion(endpoint.number << layout.SUBJECT_BITS | reply_slot)
        if not returning_slots:
            self._returning_endpoints.pop(endpoint, None)
            return
        self._returning_endpoints[endpoint] = None
        if self.scan_at is None:
            self.scan_at = 0  # immediately, and then periodically

    def pending_work(self) -> Iterable[str]:
        """Yield sentences for every peer with unanswered packets, or with messages that wait for a channel or a
        route."""
        for peer in self._card.peers.known.values():
            if peer.send_table.unanswered_count:
                yield f"node {peer.number}: {peer.send_table.unanswered_count} packets are unacknowledged"
            if peer.scheduler:
                resource = "a free channel" if peer.route is not None else "a route"
                yield f"node {peer.number}: {len(peer.scheduler.waiting_slots)} endpoints wait for {resource}"
