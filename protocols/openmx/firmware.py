"""Open-MX's driver: sends messages for the library, and puts received frames into the endpoints' receive rings.

The driver checks a frame's endpoint and session, and refuses frames for closed endpoints and other sessions. The
library does matching, ordering and acknowledgements. The driver handles pulls itself (`pulls`). Connection requests to
an endpoint that is not open yet are kept until it is opened.

When a host dies, the driver notifies the partners of its endpoints. Open-MX's driver only refuses their later messages,
so a partner that only receives would not detect the failure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from protocols.core import firmware
from protocols.core.announcements import Announcements
from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.malformed import MalformedError
from protocols.core.memory import DmaMemory, UnpinnedError
from protocols.openmx import states
from protocols.openmx.codec import (
    TYPE_CONNECT,
    TYPE_MEDIUM,
    TYPE_NACK_LIB,
    TYPE_NACK_MCP,
    TYPE_NOTIFY,
    TYPE_PULL,
    TYPE_PULL_REPLY,
    TYPE_RNDV,
    TYPE_SMALL,
    TYPE_TINY,
    TYPE_TRUC,
)
from protocols.openmx.codec_interface import Codec
from protocols.openmx.counters import Counters
from protocols.openmx.driver_endpoint import Connection, Driver, DriverEndpoint, Region, refusal
from protocols.openmx.endpoint_memory import ALARM, Command, Commands, Event, Op, ReceiveRing
from protocols.openmx.local_messages import OPERATIONS
from protocols.openmx.mx_names import MAX_FRAGMENTS, MEDIUM_MAX, SEQNUM_BITS, SMALL_MAX, TINY_MAX
from protocols.openmx.pulls import Pulls
from protocols.openmx.settings import MAX_ENTRIES, MIN_ENTRIES, Settings

_MAX_CONNECTIONS: Final = 4096
"""Maximum number of a host's connections whose partners are notified when it dies."""


class Firmware(firmware.Firmware):
    """The driver of one NIC."""

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: DmaMemory,
        commands: Commands,
        settings: Settings,
        codec: Codec,
        counters: Counters,
        drivers: dict[int, Driver],
    ) -> None:
        """counters: shared with the library, if both are in one process. drivers: see `Driver`."""
        self._driver: Final = Driver(adapter, nic, memory, settings, counters, codec, drivers)
        self._pulls: Final = Pulls(self._driver)
        self._commands = commands
        self._connections: dict[Connection, int] = {}  # first expected sequence number of each
        self._due_notices: list[tuple[Connection, int]] = []
        self._data = b""
        self._now = 0
        self._type_of: Final = codec.type_of

    def take_over(self, now: int, previous: Firmware) -> None:
        """Replace a previous driver whose host, if any, has ended: notify the partners of its endpoints, and take over
        the connection requests that arrived before the new host was attached.

        The notification is delayed by the retransmission time. A host that has ended normally may owe acknowledgements,
        and senders that do not wait for them must not be disturbed earlier than by the refusal of a retransmission.
        """
        settings = self._driver.settings
        self._driver.early_connects = previous._driver.early_connects
        for index, _, _ in self._driver.early_connects:
            self._driver.endpoints[index] = DriverEndpoint(index)
        pending = previous._driver.close_notices.pending() if previous._driver.close_notices is not None else {}
        self._driver.close_notices = notices = Announcements(_appending_to(self._due_notices))
        for connection, seqnum in (pending | previous._connections).items():
            notices.begin(connection, seqnum, now + settings.tick * settings.resend)

    @property
    def counters(self) -> Counters:
        return self._driver.counters

    @property
    def deadline(self) -> int | None:
        deadline = self._driver.timers.deadline
        if self._driver.close_notices is None:
            return deadline
        notice = self._driver.close_notices.timers.deadline
        return notice if deadline is None or (notice is not None and notice < deadline) else deadline

    def counter_values(self) -> dict[str, int]:
        return self._driver.counters.counter_values()

    def pending_work(self) -> list[str]:
        return self._pulls.pending_work()

    def on_timer(self, now: int) -> None:
        for key in self._driver.timers.expired(now):
            if key >= 0:
                self._pulls.expire(now, key)
            else:
                self._driver.nic.post_completion(~key << 16 | ALARM)
        if self._driver.close_notices is not None:
            settings = self._driver.settings
            self._driver.close_notices.on_timer(now, settings.tick, settings.tick * settings.resend)
            for connection, first in self._due_notices:
                self._driver.notify_closed(connection, first)
            self._due_notices.clear()

    # Commands.

    def on_doorbell(self, now: int, index: int) -> None:
        driver = self._driver
        command, data = self._commands.read(index)
        operation = _OPERATIONS.get(command.op)
        endpoint = driver.endpoints.get(command.endpoint)
        if operation is None or command.peer >= len(driver.addresses) or (
            command.op != Op.OPEN and (endpoint is None or endpoint.state != states.OPEN)
        ):  # fmt: skip
            driver.counters.invalid += 1
            return
        self._data, self._now = data, now
        try:
            if command.peer in driver.local_ranks and self._share(command):
                return
            operation(self, endpoint or DriverEndpoint(command.endpoint), command)
        except struct.error:  # a value does not fit its field
            driver.counters.invalid += 1

    def _share(self, command: Command) -> bool:
        """Pass a message to an endpoint of this node without a frame. Returns False for other commands, and if the
        endpoint's driver is in another process."""
        share = OPERATIONS.get(command.op)
        receiver = self._driver.driver_on_node(command.peer) if share is not None else None
        if share is None or receiver is None:
            return False
        if command.op == Op.CONNECT:
            self._record_connection(command)
        share(self._driver, receiver, command, self._data)
        return True

    def _open(self, endpoint: DriverEndpoint, command: Command) -> None:
        driver = self._driver
        try:
            memory = driver.memory.view(command.address, ReceiveRing.size(command.length, driver.fragment_size))
        except UnpinnedError:
            driver.counters.invalid += 1
            return
        if endpoint.state == states.OPEN or not MIN_ENTRIES <= command.length <= MAX_ENTRIES:
            driver.counters.invalid += 1
            return
        driver.endpoints[endpoint.index] = endpoint
        endpoint.session = command.session
        endpoint.ring = ReceiveRing(memory, command.length, driver.fragment_size)
        self._driver.step(endpoint, "open")
        for key in [key for key in driver.early_connects if key[0] == endpoint.index]:
            driver.deliver(driver, endpoint, driver.early_connects.pop(key))

    def _close(self, endpoint: DriverEndpoint, command: Command) -> None:  # noqa: ARG002
        self._driver.step(endpoint, "close")
        endpoint.regions.clear()
        for connection in [connection for connection in self._connections if connection[0] == endpoint.index]:
            del self._connections[connection]
        self._pulls.end_all(endpoint)
        self._driver.timers.cancel(~endpoint.index)

    def _send(self, endpoint: DriverEndpoint, command: Command) -> None:
        driver, length = self._driver, command.length
        if length > SMALL_MAX:
            driver.counters.invalid += 1
            return
        if length <= TINY_MAX:
            driver.counters.send_tiny += 1
            pack = driver.codec.pack_tiny
        else:
            driver.counters.send_small += 1
            pack = driver.codec.pack_small
        driver.send(
            pack(
                driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, endpoint.index,
                command.seqnum, command.ack, command.match, command.session, self._data,
            )
        )  # fmt: skip

    def _send_medium(self, endpoint: DriverEndpoint, command: Command) -> None:
        driver, length, fragment_size = self._driver, command.length, self._driver.fragment_size
        try:
            data = driver.memory.view(command.address, length)
        except UnpinnedError:
            driver.counters.invalid += 1
            return
        if not 0 < length <= MEDIUM_MAX:
            driver.counters.invalid += 1
            return
        count = -(-length // fragment_size)
        for step in range(count):
            number = (command.number + step) % count
            start = number * fragment_size
            payload = driver.nic.dma_read([data[start : start + fragment_size]])
            driver.counters.send_mediumsq_frag += 1
            driver.send(
                driver.codec.pack_medium(
                    driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, endpoint.index,
                    length, command.seqnum, command.ack, command.match, command.session, number, payload,
                )
            )  # fmt: skip

    def _send_rndv(self, endpoint: DriverEndpoint, command: Command) -> None:
        driver = self._driver
        driver.counters.send_rndv += 1
        driver.send(
            driver.codec.pack_rndv(
                driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, endpoint.index,
                command.seqnum, command.ack, command.match, command.session, command.length, command.number, command.turn, 0,
            )
        )  # fmt: skip

    def _send_notify(self, endpoint: DriverEndpoint, command: Command) -> None:
        driver = self._driver
        driver.counters.send_notify += 1
        driver.send(
            driver.codec.pack_notify(
                driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, endpoint.index,
                command.session, command.length, command.number, command.turn, command.seqnum, command.ack,
            )
        )  # fmt: skip

    def _send_ack(self, endpoint: DriverEndpoint, command: Command) -> None:
        driver = self._driver
        driver.counters.send_liback += 1
        driver.send(
            driver.codec.pack_truc(
                driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, endpoint.index,
                command.session, command.ack, command.session, command.word, command.seqnum, 0,
            )
        )  # fmt: skip

    def _send_connect(self, endpoint: DriverEndpoint, command: Command) -> None:
        """Send a connection request, or an answer: then the command's `flag` is 1, and `turn` the status."""
        driver = self._driver
        driver.counters.send_connect += 1
        self._record_connection(command)
        driver.send(
            driver.codec.pack_connect(
                driver.addresses[command.peer], driver.address, driver.number, command.dst_endpoint, endpoint.index,
                command.session, command.word, command.seqnum, command.flag, command.number & 0xFF, command.turn,
            )
        )  # fmt: skip

    def _record_connection(self, command: Command) -> None:
        """Record the first sequence number of a connection's session, unless the command refuses the connection or the
        partner is on this NIC. A later number of the same session, in a repeated answer, is ignored."""
        if command.turn or command.peer == self._driver.number:
            return
        connection = (command.endpoint, command.peer, command.dst_endpoint)
        recorded = self._connections.get(connection)
        is_new = recorded is None or recorded >> SEQNUM_BITS != command.seqnum >> SEQNUM_BITS
        if is_new and (recorded is not None or len(self._connections) < _MAX_CONNECTIONS):
            self._connections[connection] = command.seqnum

    def _register(self, endpoint: DriverEndpoint, command: Command) -> None:
        endpoint.regions[command.number] = Region(command.address, command.length, command.turn)

    def _deregister(self, endpoint: DriverEndpoint, command: Command) -> None:
        endpoint.regions.pop(command.number, None)

    def _pull(self, endpoint: DriverEndpoint, command: Command) -> None:
        self._pulls.begin(self._now, endpoint, command)

    def _close_pull(self, endpoint: DriverEndpoint, command: Command) -> None:
        self._pulls.end(endpoint, command.number)

    def _set_alarm(self, endpoint: DriverEndpoint, command: Command) -> None:
        self._driver.timers.set(~endpoint.index, self._now + command.length)

    # Frames.

    def receive(self, now: int, frame: bytes) -> None:
        driver = self._driver
        if frame[:6] != driver.address:  # a switch that has not learned the address floods the frame
            driver.counters.drop_bad_peer_addr += 1
            return
        try:
            kind = self._type_of(frame)
            parse = _PARSERS.get(kind)
            if parse is not None:
                src, dst, event, data = parse(driver.codec, frame)
                if kind == TYPE_MEDIUM and len(data) != min(
                    driver.fragment_size, event.total - event.number * driver.fragment_size
                ):
                    raise MalformedError("frag_length")
                if driver.sender(src, event.peer) < 0:
                    driver.counters.drop_bad_peer_addr += 1
                    return
                driver.receive_message(driver, dst, event, data)
            elif kind == TYPE_PULL_REPLY:
                self._pulls.receive_reply(now, frame)
            elif kind == TYPE_PULL:
                self._pulls.receive_request(frame)
            elif kind == TYPE_NACK_MCP:
                self._pulls.receive_nack(frame)
            elif kind == TYPE_NACK_LIB:
                self._receive_nack(frame)
            else:
                driver.counters.drop_invalid_type += 1
        except MalformedError as error:
            if error.reason == "check":
                driver.counters.drop_bad_check += 1
            else:
                driver.counters.drop_bad_header_datalen += 1

    def _receive_nack(self, frame: bytes) -> None:
        """Pass the refusal of a message to the library."""
        driver = self._driver
        _, src, peer_index, src_endpoint, nack_type, dst, _, seqnum, _ = driver.codec.unpack_nack_lib(frame)
        if driver.sender(src, peer_index) < 0:
            driver.counters.drop_bad_peer_addr += 1
            return
        driver.receive_nack(driver, dst, refusal(peer_index, src_endpoint, nack_type, seqnum))


def _appending_to(notices: list[tuple[Connection, int]]) -> Callable[[Connection, int], None]:
    """Return a function that appends to a list, and holds no reference to a firmware: see `_OPERATIONS`."""
    return lambda connection, first: notices.append((connection, first))


_OPERATIONS: Final[dict[int, Callable[[Firmware, DriverEndpoint, Command], None]]] = {
    Op.OPEN: Firmware._open,
    Op.CLOSE: Firmware._close,
    Op.SEND: Firmware._send,
    Op.SEND_MEDIUM: Firmware._send_medium,
    Op.RNDV: Firmware._send_rndv,
    Op.NOTIFY: Firmware._send_notify,
    Op.ACK: Firmware._send_ack,
    Op.CONNECT: Firmware._send_connect,
    Op.REGISTER: Firmware._register,
    Op.DEREGISTER: Firmware._deregister,
    Op.PULL: Firmware._pull,
    Op.CLOSE_PULL: Firmware._close_pull,
    Op.SET_ALARM: Firmware._set_alarm,
}
"""Functions that carry out a host's commands. Bound methods would keep a firmware and a dead host's memory alive."""

_Parsed = tuple[bytes, int, Event, Buffer]


def _parse_tiny(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, seqnum, ack, match, session, data = codec.unpack_tiny(frame)
    return src, dst, _complete_eager(Event(TYPE_TINY, src_endpoint, peer, seqnum, ack, session), match, data), data


def _parse_small(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, seqnum, ack, match, session, data = codec.unpack_small(frame)
    return src, dst, _complete_eager(Event(TYPE_SMALL, src_endpoint, peer, seqnum, ack, session), match, data), data


def _complete_eager(event: Event, match: int, data: Buffer) -> Event:
    """Complete the event of a message whose frame has all its data."""
    event.match = match
    event.length = event.total = len(data)
    return event


def _parse_medium(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, total, seqnum, ack, match, session, number, data = codec.unpack_medium(frame)
    if not 0 < total <= MEDIUM_MAX or number >= MAX_FRAGMENTS:
        raise MalformedError("msg_length")
    event = Event(TYPE_MEDIUM, src_endpoint, peer, seqnum, ack, session)
    event.number, event.length, event.total, event.match = number, len(data), total, match
    return src, dst, event, data


def _parse_rndv(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, seqnum, ack, match, session, total, region, turn, _, data = codec.unpack_rndv(
        frame
    )
    event = Event(TYPE_RNDV, src_endpoint, peer, seqnum, ack, session)
    event.number, event.turn, event.total, event.match = region, turn, total, match
    return src, dst, event, data[:0]


def _parse_notify(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, session, total, region, turn, seqnum, ack, data = codec.unpack_notify(frame)
    event = Event(TYPE_NOTIFY, src_endpoint, peer, seqnum, ack, session)
    event.number, event.turn, event.total = region, turn, total
    return src, dst, event, data


def _parse_truc(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, session, ack, acked, acknum, seqnum, _, data = codec.unpack_truc(frame)
    event = Event(TYPE_TRUC, src_endpoint, peer, seqnum, ack, session)
    event.total, event.word = acknum, acked
    return src, dst, event, data


def _parse_connect(codec: Codec, frame: bytes) -> _Parsed:
    _, src, peer, dst, src_endpoint, session, word, seqnum, is_reply, number, status, data = codec.unpack_connect(frame)
    event = Event(TYPE_CONNECT, src_endpoint, peer, seqnum, 0, session)
    event.flag, event.turn, event.number, event.word = is_reply, status, number, word
    return src, dst, event, data


_PARSERS: Final[dict[int, Callable[[Codec, bytes], _Parsed]]] = {
    TYPE_TINY: _parse_tiny,
    TYPE_SMALL: _parse_small,
    TYPE_MEDIUM: _parse_medium,
    TYPE_RNDV: _parse_rndv,
    TYPE_NOTIFY: _parse_notify,
    TYPE_TRUC: _parse_truc,
    TYPE_CONNECT: _parse_connect,
}
"""Parsers of the frames that become events. Each returns the frame's source address, its destination endpoint, the event,
and the event's data."""
