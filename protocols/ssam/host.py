"""SSAM's host library: requests, replies, and the polls that handle them (section 3.1).

    async def program(ssam, node):
        ssam.set_handler(1, lambda source, data: Reply(2, data[::-1]))
        ssam.set_handler(2, lambda source, data: print(data))
        await ssam.request(1 - ssam.node, 1, b"hello")
        while not await ssam.poll():
            await ssam.wait()

A handler is called with the number of the sending node, and the message's data. A request's handler may return one
reply. Handlers must not send requests or poll, so that messages cannot deadlock (section 3.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from protocols.active_messages.am_errors import ActiveMessageError, RuleError
from protocols.atm.cell import PAYLOAD
from protocols.core.completion import Completion, Yield
from protocols.core.firmware import Buffer, Host, HostActions
from protocols.ssam import cells
from protocols.ssam.cells import DATA, LONG, Message
from protocols.ssam.connection import Connection, Pending, unpack_introduction
from protocols.ssam.sba100 import ALARM, CELLS, CONTROL_OFFSET, Process, answer_offset, request_offset
from protocols.ssam.settings import MAX_BACKOFF, MAX_WINDOW

MAX_ADDRESS: Final = 0xFFFF_FFFF
"""Maximum address of a handler."""
FORMAT: Final = "format"
"""Work on the host: format a request's cell, with the flow control."""
DISPATCH: Final = "dispatch"
"""Work on the host: flow control of a received message, and the call of its handler."""


class Reply(NamedTuple):
    """Reply of a request's handler. handler: address of a handler of the requester. data: at most DATA bytes."""

    handler: int
    data: Buffer


class Returned(NamedTuple):
    """A request that was returned to its sender. It may have been handled, since only the answer may have been lost.
    node: the destination. reason: completes a sentence that begins with the node."""

    node: int
    handler: int
    data: bytes
    reason: str


Handler = Callable[[int, bytes], Reply | None]
"""Handler of messages. Arguments: number of the sending node, and data."""


class ReturnedError(ActiveMessageError):
    """A request was returned, and `on_returned` is not set."""


class Library(Host):
    """SSAM's library of one process.

    node: this node's number. size: number of nodes. incarnation, is_restarted: of the NIC (`Adapter`). process: the
    traps, for programs that use them directly. on_returned: called with returned requests; None: the next request to
    that node raises ReturnedError. on_cells: called after arrived cells have been handled without a poll by the
    program, by the interrupt of section 3.1.1, which the paper's prototype lacks (see `watch`). on_space: called after
    answers have arrived. on_message: handler of requests to addresses without a handler, and of further cells of long
    messages. on_renewed: called with a node's number when a new session replaces an earlier one.
    """

    def __init__(self, process: Process, nic: HostActions) -> None:
        device = process.device
        self.node: Final = device.adapter.number
        self.size: Final = len(device.adapter.addresses)
        self.incarnation: Final = device.adapter.incarnation
        self.is_restarted: Final = device.adapter.is_restarted
        self.on_returned: Callable[[Returned], object] | None = None
        self.on_cells: Callable[[], object] | None = None
        self.on_space: Callable[[], object] | None = None
        self.on_message: Callable[[int, Message], Reply | None] | None = None
        self.on_renewed: Callable[[int], object] | None = None
        self.settings: Final = device.settings
        self.process: Final = process
        self._nic = nic
        self._work = device.work
        self._counters = device.counters
        self._handlers: dict[int, Callable[[int, bytes], object]] = {}  # programs' handlers may return any object
        self._connections: dict[int, Connection] = {}  # by number
        self._is_handling = False
        self._has_ended = False  # the program has ended
        self._is_armed = False  # the alarm is set
        self._backoff = 0  # number of doublings of the time-out
        self._wait_completion: Completion[None] | None = None
        self._returned_by_node: dict[int, Returned] = {}
        self._read_messages: deque[tuple[int, Message]] = deque()  # messages of read traps, not handled yet
        if device.settings.interrupts:
            self.on_cells = _do_nothing
            self.watch()

    @property
    def is_handling(self) -> bool:
        """Whether a handler is running."""
        return self._is_handling

    def set_handler(self, address: int, handler: Handler) -> None:
        """Set the handler of an address. address: 0 to MAX_ADDRESS; senders name the handler by it. Raises
        ValueError."""
        if not 0 <= address <= MAX_ADDRESS:
            raise ValueError(_address_error(address))
        self._handlers[address] = handler

    async def request(self, node: int, handler: int, data: Buffer = b"") -> None:
        """Send a request (ssam_10), and handle the messages that have arrived; wait while the window to the node is
        full. Raises RuleError within a handler, ValueError for more than DATA bytes and for an invalid address or node,
        ReturnedError, TrapError for too many connections, and the exceptions of handlers."""
        while not self.try_request(node, handler, data):
            await self.poll()
        await self.handle_read()

    async def handle_read(self) -> None:
        """Handle the messages that a request's write-read trap has delivered."""
        if self._read_messages:
            self._handle_batch()
        await self._work.caught_up()

    def try_request(self, node: int, handler: int, data: Buffer = b"", pending: Pending | None = None) -> bool:
        """Send a request, unless the window to the node is full; return whether it was sent. pending: callbacks for the
        answer or the return, instead of the handlers. Raises as `request`."""
        contents = data if isinstance(data, bytes) else _copy_bytes(data)
        if len(contents) > DATA:
            raise ValueError(f"{len(contents)} bytes: a message carries {DATA} at most")
        if not 0 <= handler <= MAX_ADDRESS:
            raise ValueError(_address_error(handler))
        return self._submit(cells.REQUEST, node, handler, contents, pending)

    def try_bytes(self, node: int, data: Buffer, pending: Pending) -> bool:
        """Send a further cell of a long message, of at most LONG bytes, to the node's `on_message`. Otherwise as
        `try_request`."""
        contents = data if isinstance(data, bytes) else _copy_bytes(data)
        if len(contents) > LONG:
            raise ValueError(f"{len(contents)} bytes: a cell of a long message carries {LONG} at most")
        return self._submit(cells.BYTES, node, 0, contents, pending)

    def _submit(self, kind: int, node: int, handler: int, data: bytes, pending: Pending | None) -> bool:
        connection = self._sendable(node)
        if not connection.has_room:
            return False
        if pending is None and node in self._returned_by_node:
            raise ReturnedError(_describe(self._returned_by_node.pop(node)))
        number = connection.take_number()
        connection.pending[number % MAX_WINDOW] = pending
        self._counters.requests += 1
        self._work.spend(FORMAT)
        offset, memory = request_offset(number), self.process.memory(connection.number)
        cells.pack_into(memory, offset, kind, connection.session, number % cells.SEQUENCE_NUMBERS, handler, data)
        if connection.is_open:  # each send polls (section 3.1.1)
            self._read_messages.extend(self.process.write_read(connection.number, offset))
        self._arm()
        return True

    def has_room(self, node: int) -> bool:
        """Return whether the window to a node permits a request. Raises as `request`."""
        return self._sendable(node).has_room

    def _sendable(self, node: int) -> Connection:
        """Return the connection to a node, after checks that the caller may send. Raises as `request`."""
        if self._is_handling:
            raise RuleError(
                "a handler may not send requests: a request's handler may return a reply, a reply's handler nothing"
            )
        if not 0 <= node < self.size:
            raise ValueError(f"node must be 0 to {self.size - 1}, got {node}")
        return self._connection(node)

    def set_window(self, node: int, window: int) -> None:
        """Change the window to a node, 1 to MAX_WINDOW requests."""
        self._connection(node).window = window

    def unanswered_count(self, node: int) -> int:
        """Return the number of unanswered requests to a node."""
        connection = self._connection(node)
        return connection.next - connection.base

    def incarnation_of(self, node: int) -> int:
        """Return the incarnation of a node; 0 if there is no session with the node."""
        theirs = self._connection(node).theirs
        return 0 if theirs is None else theirs.incarnation

    async def poll(self) -> int:
        """Handle the received messages (ssam_poll); return their number. Without messages, lets the NIC and other tasks
        run first. Raises RuleError within a handler, and the exceptions of handlers."""
        if self._is_handling:
            raise RuleError("a handler may not poll")
        handled = await self._handle_batches()
        if not handled:
            await Yield()
            handled = await self._handle_batches()
        return handled

    def handle_all(self) -> int:
        """Handle the received messages, as `poll`, for code that cannot await. Does nothing within a handler."""
        return 0 if self._is_handling else self._handle_all()

    def wait(self) -> Completion[None]:
        """Return a completion that completes when cells have arrived or a time-out has expired."""
        if self._wait_completion is None or self._wait_completion.done:
            self._wait_completion = Completion("a cell")
        completion = self._wait_completion
        if self.process.has_cells or self._read_messages:
            completion.complete(None)
        else:
            self.process.is_watched = True
        return completion

    def sent_count(self, node: int) -> int:
        """Return the number of requests sent to a node in the current session."""
        return self._connection(node).next

    def answered_count(self, node: int) -> int:
        """Return the number of leading requests of the current session that are answered."""
        return self._connection(node).base

    def unread(self) -> Iterator[tuple[int, Message, Pending | None]]:
        """Yield the received and unhandled messages of current sessions, each with the node and the callbacks for an
        answer."""
        while batch := self.process.read():
            self._read_messages.extend(batch)
        for number, message in self._read_messages:
            connection = self._connections.get(number)
            if connection is None or message.session != connection.session:
                continue
            if message.kind in (cells.REPLY, cells.ACKNOWLEDGEMENT):
                yield connection.node, message, connection.pending[message.number % MAX_WINDOW]
            elif message.kind != cells.INTRODUCTION and connection.distance_of(message.number) >= 0:
                yield connection.node, message, None
        for connection in self._connections.values():
            for message in connection.kept.values():
                yield connection.node, message, None

    @contextmanager
    def as_handler(self) -> Iterator[None]:
        """Mark a block as a handler, which may not send."""
        self._is_handling = True
        try:
            yield
        finally:
            self._is_handling = False

    def program_ended(self) -> None:
        """Continue by interrupts after the program has ended: resend requests and answers, but handle no new
        requests."""
        self._has_ended = True
        self.on_cells = _do_nothing
        self.handle_all()
        self.watch()

    # Completions.

    def on_completion(self, index: int) -> bool | None:
        if index == ALARM:
            self._is_armed = False
            timeout_counts = [self._on_alarm(connection) for connection in list(self._connections.values())]
            self._backoff = min(max(min(filter(None, timeout_counts), default=1) - 1, 0), MAX_BACKOFF)
            if any(connection.outstanding for connection in self._connections.values()):
                self._arm()
            self.wake()
            return False
        if index == CELLS:
            if self.on_cells is not None:
                self.handle_all()
                self.on_cells()
                self.process.is_watched = True
            self.wake()
        return None

    def watch(self) -> None:
        """Handle arriving cells at once, and call `on_cells`, from now on."""
        self.process.is_watched = True

    def pending_work(self) -> list[str]:
        return [
            f"{len(outstanding)} requests to node {connection.node} are not answered"
            for connection in self._connections.values()
            if (outstanding := connection.outstanding)
        ]

    def wake(self) -> None:
        """Wake waiting tasks."""
        if self._wait_completion is not None and not self._wait_completion.done:
            self._wait_completion.complete(None)

    # Messages.

    async def _handle_batches(self) -> int:
        """Handle batches until none arrives while the core handles the previous one; return the number of messages."""
        total = 0
        while handled := self._handle_batch():
            total += handled
            await self._work.caught_up()
        return total

    def _handle_all(self) -> int:
        total = 0
        while handled := self._handle_batch():
            total += handled
        return total

    def _handle_batch(self) -> int:
        """Handle the messages of one read trap; return their number."""
        if not self._read_messages:
            self._read_messages.extend(self.process.read())
        if not self._read_messages:
            return 0
        handled, answered_connections = 0, dict[Connection, None]()
        while self._read_messages:
            number, message = self._read_messages.popleft()
            handled += 1
            self._work.spend(DISPATCH)
            connection = self._current_connection(number, message)
            if connection is None:
                continue
            if message.kind in (cells.REQUEST, cells.BYTES):
                self._handle_request(connection, message)
            else:
                answered_connections[connection] = None
                self._handle_answer(connection, message)
        for connection in answered_connections:
            for number in connection.recover():
                self._resend_lost(connection, number)
        if answered_connections and self.on_space is not None:
            self.on_space()
        return handled

    def _current_connection(self, number: int, message: Message) -> Connection | None:
        """Return the connection of a message of the current session. An introduction or a stale message is handled
        here; the result is None."""
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connection_of(number)
        if message.kind == cells.INTRODUCTION:
            self._handle_introduction(connection, message.data)
            return None
        if not connection.is_open or message.session != connection.session:
            self._counters.stale += 1
            self._introduce(connection)
            return None
        return connection

    def _handle_request(self, connection: Connection, message: Message) -> None:
        counters, distance = self._counters, connection.distance_of(message.number)
        if distance < 0:
            counters.answered_again += 1
            self.process.write(connection.number, answer_offset(message.number))
            return
        if message.number in connection.kept:
            counters.duplicates += 1
        else:
            connection.kept[message.number] = message
            if distance > 0:
                counters.early += 1
                if len(connection.kept) == 1:
                    self._report_missing(connection)
        self._handle_in_order(connection)

    def _handle_in_order(self, connection: Connection) -> None:
        """Run the handlers of the kept requests that are next in order. A request whose handler raises an exception is
        answered, too, since it counts as handled."""
        expected_before = connection.expected
        while not self._has_ended and (request := connection.next_turn()) is not None:
            self._counters.handled += 1
            reply = None
            try:
                reply = self._run(connection, request)
            finally:
                self._answer(connection, request.number, reply)
        if connection.kept and connection.expected > expected_before:
            self._report_missing(connection)

    def _answer(self, connection: Connection, number: int, reply: Reply | None) -> None:
        """Store and send the answer to a request."""
        offset, memory = answer_offset(number), self.process.memory(connection.number)
        if reply is None:
            cells.pack_into(memory, offset, cells.ACKNOWLEDGEMENT, connection.session, number)
        else:
            cells.pack_into(memory, offset, cells.REPLY, connection.session, number, reply.handler, bytes(reply.data))
        self.process.write(connection.number, offset)

    def _report_missing(self, connection: Connection) -> None:
        """Report to the peer that the expected request is missing."""
        number = connection.expected % cells.SEQUENCE_NUMBERS
        memory = self.process.memory(connection.number)
        cells.pack_into(memory, CONTROL_OFFSET, cells.ACKNOWLEDGEMENT, connection.session, number, cells.MISSING)
        self.process.write(connection.number, CONTROL_OFFSET)

    def _resend_lost(self, connection: Connection, number: int | None) -> None:
        """Resend a request that is known to be lost. number: None: no request is lost."""
        if number is not None:
            self._counters.hurried += 1
            self.process.write(connection.number, request_offset(number))

    def _handle_answer(self, connection: Connection, message: Message) -> None:
        counters = self._counters
        if message.kind == cells.ACKNOWLEDGEMENT and message.handler == cells.MISSING:
            self._resend_lost(connection, connection.find_lost(message.number))
            return
        if not connection.record_answer(message.number):
            counters.old_answers += 1
            return
        is_reply = message.kind == cells.REPLY
        if is_reply:
            counters.replies += 1
        else:
            counters.acknowledged += 1
        self._resend_lost(connection, connection.find_lost())
        slot = message.number % MAX_WINDOW
        pending, connection.pending[slot] = connection.pending[slot], None
        if self._has_ended:
            return
        if pending is not None:
            self._is_handling = True
            try:
                pending.on_answer(message)
            finally:
                self._is_handling = False
        elif is_reply:
            self._run(connection, message)

    def _run(self, connection: Connection, message: Message) -> Reply | None:
        handler = self._handlers.get(message.handler) if message.kind != cells.BYTES else None
        fallback = self.on_message if message.kind != cells.REPLY else None
        if handler is None and fallback is None:
            self._counters.no_handler += 1
            return None
        self._is_handling = True
        try:
            if handler is not None:
                reply = handler(connection.node, message.data)
            else:
                assert fallback is not None
                reply = fallback(connection.node, message)
        finally:
            self._is_handling = False
        if reply is None:
            return None
        if message.kind == cells.REPLY:
            raise RuleError(f"the handler {message.handler} of a reply has returned a reply: it may send nothing")
        if not isinstance(reply, Reply):
            returned = type(reply).__name__
            raise RuleError(f"the handler {message.handler} has returned a {returned}: it may return a Reply or None")
        if not 0 <= reply.handler <= MAX_ADDRESS:
            raise RuleError(
                f"the handler {message.handler} has returned an invalid reply: {_address_error(reply.handler)}"
            )
        contents = reply.data if isinstance(reply.data, bytes) else _copy_bytes(reply.data)
        if len(contents) > DATA:
            raise RuleError(f"the handler {message.handler} has replied {len(contents)} bytes: {DATA} at most")
        return reply

    # Connections.

    def _connection(self, node: int) -> Connection:
        """Return the connection to a node; open it if necessary. Raises TrapError."""
        number = self.process.connect(node)
        return self._connections.get(number) or self._connection_of(number, node)

    def _connection_of(self, number: int, node: int | None = None) -> Connection:
        """Create the connection with an id. node: the peer's number, if this node opens the connection and introduces
        itself; None: the kernel has accepted the connection."""
        peer = self.process.node_of(number) if node is None else node
        connection = Connection(number, peer, self.settings.window, self.incarnation)
        self._connections[number] = connection
        if peer == self.node:
            connection.adopt(connection.ours)
        elif node is not None:
            self._introduce(connection)
        return connection

    def _introduce(self, connection: Connection) -> None:
        memory = self.process.memory(connection.number)
        cells.pack_into(memory, CONTROL_OFFSET, cells.INTRODUCTION, 0, 0, 0, connection.introduction())
        self.process.write(connection.number, CONTROL_OFFSET)

    def _handle_introduction(self, connection: Connection, data: bytes) -> None:
        identities = unpack_introduction(data)
        if identities is None or connection.node == self.node:
            return
        theirs, ours = identities
        previous = connection.theirs
        if previous is None or theirs.is_later_than(previous):
            if previous is not None:
                self._counters.restarts += 1
                self._return(connection, "has restarted")
            connection.adopt(theirs)
            if previous is not None:
                self._on_session_renewed(connection)
            for number in connection.outstanding:
                self.process.write(connection.number, self._set_session(connection, number))
        if ours != connection.ours or theirs != connection.theirs:
            self._introduce(connection)

    def _on_alarm(self, connection: Connection) -> int:
        """Resend or return requests of a connection at an alarm; return the number of consecutive time-outs, 0 if no
        request is unanswered."""
        overdue = connection.find_overdue()
        if overdue is not None and connection.is_open:
            self._counters.resent += 1
            self.process.write(connection.number, request_offset(overdue))
        if connection.outstanding:
            if not connection.is_open:
                self._introduce(connection)
            if self.settings.give_up and connection.timeout_count >= self.settings.give_up:
                self._return(connection, "has not answered for as long as the settings allow")
                connection.renew()
                self._on_session_renewed(connection)
                self._introduce(connection)
        return connection.timeout_count if connection.outstanding else 0

    def _return(self, connection: Connection, reason: str) -> None:
        """Return the unanswered requests of a connection to the program. reason: see `Returned`."""
        memory = self.process.memory(connection.number)
        for number in connection.outstanding:
            self._counters.returned += 1
            slot = number % MAX_WINDOW
            pending, connection.pending[slot] = connection.pending[slot], None
            if pending is not None:
                pending.on_return(reason)
                continue
            message = cells.unpack(cells.with_crc(memory[request_offset(number) : request_offset(number) + PAYLOAD]))
            assert message is not None
            returned = Returned(connection.node, message.handler, message.data, reason)
            if self.on_returned is not None:
                self.on_returned(returned)
            else:
                self._returned_by_node[connection.node] = returned

    def _on_session_renewed(self, connection: Connection) -> None:
        connection.window = self.settings.window
        if self.on_renewed is not None:
            self.on_renewed(connection.node)

    def _set_session(self, connection: Connection, number: int) -> int:
        """Write the session into the cell of a queued request, since it was unknown before; return the cell's
        offset."""
        memory, offset = self.process.memory(connection.number), request_offset(number)
        kind = memory[offset] >> 6
        control = kind << 14 | connection.session << 6 | number % cells.SEQUENCE_NUMBERS
        memory[offset : offset + 2] = control.to_bytes(2, "big")
        return offset

    def _arm(self) -> None:
        """Set the alarm, unless it is set."""
        if not self._is_armed:
            self._is_armed = True
            self._nic.ring_doorbell(ALARM + self._backoff, 0, 0)


def _address_error(address: int) -> str:
    return f"the handler's address must be 0 to {MAX_ADDRESS}, got {address}"


def _copy_bytes(data: Buffer) -> bytes:
    """Return a copy of the bytes of a buffer with any item size. Raises TypeError for another object."""
    return memoryview(data).tobytes()


def _do_nothing() -> None:
    """Do nothing: the handlers have run before `on_cells` is called."""


def _describe(returned: Returned) -> str:
    return (
        f"a request to handler {returned.handler} of node {returned.node} was returned: the node {returned.reason}; "
        "whether the request was handled is not known"
    )
