"""SSAM's host library: requests, replies, and the polls that handle them (section 3.1).

async def program(ssam, node):
    ssam.set_handler(1, lambda source, data: Reply(2, data[::-1]))
    ssam.set_handler(2, lambda source, data: print(data))
    await ssam.request(1 - ssam.node, 1, b"hello")
    while not await ssam.poll():
        await ssam.wait()

A handler is called with the number of the node that has sent the message, and the message's data. A request's handler may
return one reply. No handler may send a request or poll, so that messages cannot deadlock (section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.atm.cell import PAYLOAD
from protocols.core.completion import Completion, Turn
from protocols.core.firmware import Adapter, Buffer, HostActions
from protocols.core.host_work import HostWork
from protocols.ssam import cells
from protocols.ssam.cells import DATA, Message
from protocols.ssam.connection import Connection, introduced
from protocols.ssam.counters import Counters
from protocols.ssam.sba100 import ALARM, CELLS, CONTROL_SLOT, Batch, Sba100, answer_slot, request_slot
from protocols.ssam.settings import MAX_BACKOFF, Settings

FORMAT: Final = "format"
"""Format a request's cell, with the flow control."""
DISPATCH: Final = "dispatch"
"""Flow control of a message that has come, and the call of its handler."""


class Reply(NamedTuple):
    """Reply of a request's handler: a handler of the requester, and at most DATA bytes."""

    handler: int
    data: Buffer


class Returned(NamedTuple):
    """A request that was returned to its sender. It may have been handled, and its answer lost."""

    node: int
    handler: int
    data: bytes
    reason: str


Handler = Callable[[int, bytes], Reply | None]


class SsamError(Exception):
    """Base of SSAM's errors."""


class RuleError(SsamError):
    """A handler has done what handlers may not do (section 3.1)."""


class ReturnedError(SsamError):
    """A request was returned, and there is no `on_returned`."""


class Library:
    """A process's access to its network interface. Implements `protocols.core.firmware.Host`.

    node: this node's number. size: number of nodes. device: the traps, for programs that use them beside. on_returned:
    called with requests that are returned; without it the next request to that node raises ReturnedError. on_cells: called
    when cells have come, in place of a poll by the program: the interrupt of section 3.1.1, which the prototype lacks (see
    `watch`). on_space: called after answers have come.
    """

    def __init__(
        self,
        adapter: Adapter,
        bell: HostActions,
        work: HostWork,
        device: Sba100,
        settings: Settings,
        counters: Counters,
    ) -> None:
        self.node: Final = adapter.number
        self.size: Final = len(adapter.addresses)
        self.incarnation: Final = adapter.incarnation
        self.on_returned: Callable[[Returned], object] | None = None
        self.on_cells: Callable[[], object] | None = None
        self.on_space: Callable[[], object] | None = None
        self._bell = bell
        self._work = work
        self.device: Final = device
        self._settings = settings
        self._counters = counters
        self._handlers: dict[int, Handler] = {}
        self._connections: dict[int, Connection] = {}  # by number
        self._is_handling = False
        self._is_armed = False
        self._backoff = 0
        self._waits: Completion[None] | None = None
        self._failed: dict[int, Returned] = {}

    @property
    def is_handling(self) -> bool:
        """Whether a handler is running."""
        return self._is_handling

    def set_handler(self, address: int, handler: Handler) -> None:
        """Set the handler of an address, which is the same on all nodes that use it. address: 0 to 0xFFFF_FFFF."""
        if not 0 <= address <= 0xFFFF_FFFF:
            raise ValueError(f"a handler's address of {address}: 0 to {0xFFFF_FFFF}")
        self._handlers[address] = handler

    async def request(self, node: int, handler: int, data: Buffer = b"") -> None:
        """Send a request (ssam_10), after polling; waits while the window to the node is full. Raises RuleError in a
        handler, ValueError for more than DATA bytes or no such node, ReturnedError, TrapError for too many
        connections."""
        while (connection := self._admit(node, data)) is None:
            await self.poll()
        offset = self._keep(connection, handler, data)
        if connection.is_open:
            self._handle(self.device.write_read(connection.number, offset))
        await self._work.caught_up()

    def try_request(self, node: int, handler: int, data: Buffer = b"") -> bool:
        """Send a request, unless the window to the node is full. Raises as `request`."""
        connection = self._admit(node, data)
        if connection is None:
            return False
        offset = self._keep(connection, handler, data)
        if connection.is_open:
            self.device.write(connection.number, offset)
        return True

    def _admit(self, node: int, data: Buffer) -> Connection | None:
        """Return the connection of a request that may be sent; None: the window is full. Raises as `request`."""
        if self._is_handling:
            raise RuleError("a handler may send no request: a request's handler returns its reply, a reply's nothing")
        if not 0 <= node < self.size:
            raise ValueError(f"no node {node}: there are {self.size}")
        if len(data) > DATA:
            raise ValueError(f"{len(data)} bytes: a message carries {DATA} at most")
        if node in self._failed:
            raise ReturnedError(_sentence(self._failed.pop(node)))
        connection = self._connection(node)
        return connection if connection.has_room else None

    def _keep(self, connection: Connection, handler: int, data: Buffer) -> int:
        """Keep a request's cell in the window's buffers; return its offset."""
        number = connection.take_number()
        self._counters.requests += 1
        self._work.spend(FORMAT)
        request = Message(cells.REQUEST, connection.session, number % cells.NUMBERS, handler, bytes(data))
        cells.pack_into(self.device.memory(connection.number), request_slot(number), request)
        self._arm()
        return request_slot(number)

    async def poll(self) -> int:
        """Handle the messages that have come (ssam_poll); return their number. A poll in vain gives way."""
        if self._is_handling:
            raise RuleError("a handler may not poll")
        handled = await self._take()
        if not handled:
            await Turn()
            handled = await self._take()
        return handled

    def handle_all(self) -> int:
        """Handle the messages that have come, as `poll`, from where nothing can be awaited."""
        return 0 if self._is_handling else self._handle_all()

    def wait(self) -> Completion[None]:
        """Return what is done when cells have come, or a time-out has passed."""
        if self._waits is None or self._waits.done:
            self._waits = Completion("a cell")
        waits = self._waits
        if self.device.has_cells:
            waits.complete(None)
        else:
            self.device.is_watched = True
        return waits

    def sent(self, node: int) -> int:
        """Return the number of requests sent to a node in the present session."""
        return self._connection(node).next

    def settled(self, node: int) -> int:
        """Return how many of them, from the first one on, have been answered."""
        return self._connection(node).base

    # From the interface.

    def completed(self, index: int) -> bool | None:
        if index == ALARM:
            self._is_armed = False
            quiet = [self._tick(connection) for connection in list(self._connections.values())]
            self._backoff = min(max(min(filter(None, quiet), default=1) - 1, 0), MAX_BACKOFF)
            if any(connection.outstanding for connection in self._connections.values()):
                self._arm()
            self._wake()
            return False
        if index == CELLS:
            if self.on_cells is not None:
                self._handle_all()
                self.on_cells()
                self.device.is_watched = True
            self._wake()
        return None

    def watch(self) -> None:
        """Call `on_cells` from now on."""
        self.device.is_watched = True

    def waiting(self) -> list[str]:
        return [
            f"{len(outstanding)} requests to node {connection.node} have no answer"
            for connection in self._connections.values()
            if (outstanding := connection.outstanding)
        ]

    def _wake(self) -> None:
        if self._waits is not None and not self._waits.done:
            self._waits.complete(None)

    # Messages.

    async def _take(self) -> int:
        """Handle batches until none comes while the core handles one."""
        handled = 0
        while self.device.has_cells:
            handled += self._handle(self.device.read())
            await self._work.caught_up()
        return handled

    def _handle_all(self) -> int:
        handled = 0
        while self.device.has_cells:
            handled += self._handle(self.device.read())
        return handled

    def _handle(self, batch: Batch) -> int:
        """Handle the messages of a batch; return their number."""
        answered = dict[Connection, None]()
        for number, message in batch:
            self._work.spend(DISPATCH)
            connection = self._known(number, message)
            if connection is None:
                continue
            if message.kind == cells.REQUEST:
                self._requested(connection, message)
            else:
                answered[connection] = None
                self._answered(connection, message)
        for connection in answered:
            for number in connection.recover():
                self._hurry(connection, number)
        if answered and self.on_space is not None:
            self.on_space()
        return len(batch)

    def _known(self, number: int, message: Message) -> Connection | None:
        """Return the connection of a message of its session; None for another message, which has been dealt with."""
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connection_of(number)
        if message.kind == cells.INTRODUCTION:
            self._introduced(connection, message.data)
            return None
        if not connection.is_open or message.session != connection.session:
            self._counters.stale += 1
            self._introduce(connection)
            return None
        return connection

    def _requested(self, connection: Connection, message: Message) -> None:
        counters, place = self._counters, connection.place_of(message.number)
        if place < 0:
            counters.answered_again += 1
            self.device.write(connection.number, answer_slot(message.number))
        elif place > 0:
            if message.number in connection.kept:
                counters.duplicates += 1
            else:
                counters.early += 1
                connection.kept[message.number] = message
                if len(connection.kept) == 1:
                    self._report_missing(connection)
        else:
            for turn in connection.in_turn(message):
                counters.handled += 1
                self._answer(connection, turn.number, self._run(connection, turn))
            if connection.kept:
                self._report_missing(connection)

    def _answer(self, connection: Connection, number: int, reply: Reply | None) -> None:
        """Hold the answer to a request, and send it."""
        if reply is None:
            answer = Message(cells.ACKNOWLEDGEMENT, connection.session, number, 0, b"")
        else:
            answer = Message(cells.REPLY, connection.session, number, reply.handler, bytes(reply.data))
        offset = answer_slot(number)
        cells.pack_into(self.device.memory(connection.number), offset, answer)
        self.device.write(connection.number, offset)

    def _report_missing(self, connection: Connection) -> None:
        """Tell the peer which request has not come, since later ones have."""
        number = connection.expected % cells.NUMBERS
        missing = Message(cells.ACKNOWLEDGEMENT, connection.session, number, cells.MISSING, b"")
        cells.pack_into(self.device.memory(connection.number), CONTROL_SLOT, missing)
        self.device.write(connection.number, CONTROL_SLOT)

    def _hurry(self, connection: Connection, number: int | None) -> None:
        """Send a request again that is known to be lost."""
        if number is not None:
            self._counters.hurried += 1
            self.device.write(connection.number, request_slot(number))

    def _answered(self, connection: Connection, message: Message) -> None:
        counters = self._counters
        if message.kind == cells.ACKNOWLEDGEMENT and message.handler == cells.MISSING:
            self._hurry(connection, connection.lost(message.number))
            return
        if not connection.answered(message.number):
            counters.old_answers += 1
            return
        if message.kind == cells.REPLY:
            counters.replies += 1
            self._run(connection, message)
        else:
            counters.acknowledged += 1
        self._hurry(connection, connection.lost())

    def _run(self, connection: Connection, message: Message) -> Reply | None:
        handler = self._handlers.get(message.handler)
        if handler is None:
            self._counters.no_handler += 1
            return None
        self._is_handling = True
        try:
            reply = handler(connection.node, message.data)
        finally:
            self._is_handling = False
        if reply is None:
            return None
        if message.kind == cells.REPLY:
            raise RuleError(f"the handler {message.handler} of a reply has returned a reply: it may send nothing")
        if len(reply.data) > DATA:
            raise RuleError(f"a reply of {len(reply.data)} bytes: {DATA} at most")
        return reply

    # Connections.

    def _connection(self, node: int) -> Connection:
        """Return the connection to a node, opened if there is none. Raises TrapError."""
        number = self.device.connect(node)
        return self._connections.get(number) or self._connection_of(number, node)

    def _connection_of(self, number: int, node: int | None = None) -> Connection:
        there = self.device.node_of(number) if node is None else node
        connection = Connection(number, there, self._settings.window, self.incarnation)
        self._connections[number] = connection
        if there == self.node:
            connection.adopt(connection.ours)
        elif node is not None:
            self._introduce(connection)
        return connection

    def _introduce(self, connection: Connection) -> None:
        introduction = Message(cells.INTRODUCTION, 0, 0, 0, connection.introduction())
        cells.pack_into(self.device.memory(connection.number), CONTROL_SLOT, introduction)
        self.device.write(connection.number, CONTROL_SLOT)

    def _introduced(self, connection: Connection, data: bytes) -> None:
        identities = introduced(data)
        if identities is None or connection.node == self.node:
            return
        theirs, ours = identities
        known = connection.theirs
        if known is None or theirs.is_later_than(known):
            if known is not None:
                self._counters.restarts += 1
                self._return(connection, "has begun anew")
            connection.adopt(theirs)
            for number in connection.outstanding:
                self.device.write(connection.number, self._stamped(connection, number))
        if ours != connection.ours or theirs != connection.theirs:
            self._introduce(connection)

    def _tick(self, connection: Connection) -> int:
        """Send again what has waited for a time-out, or return it; return how many time-outs have passed in vain."""
        overdue = connection.overdue()
        if overdue is not None and connection.is_open:
            self._counters.resent += 1
            self.device.write(connection.number, request_slot(overdue))
        if connection.outstanding:
            if not connection.is_open:
                self._introduce(connection)
            if self._settings.give_up and connection.quiet >= self._settings.give_up:
                self._return(connection, "has not answered for as long as the settings allow")
                connection.renew()
                self._introduce(connection)
        return connection.quiet if connection.outstanding else 0

    def _return(self, connection: Connection, reason: str) -> None:
        """Return the requests without an answer to the program."""
        memory = self.device.memory(connection.number)
        for number in connection.outstanding:
            self._counters.returned += 1
            message = cells.unpack(cells.checked(memory[request_slot(number) : request_slot(number) + PAYLOAD]))
            assert message is not None
            returned = Returned(connection.node, message.handler, message.data, reason)
            if self.on_returned is not None:
                self.on_returned(returned)
            else:
                self._failed[connection.node] = returned

    def _stamped(self, connection: Connection, number: int) -> int:
        """Set the session of a kept request, which was not known before; return its offset."""
        memory, offset = self.device.memory(connection.number), request_slot(number)
        memory[offset : offset + 2] = (cells.REQUEST << 14 | connection.session << 6 | number % cells.NUMBERS).to_bytes(
            2, "big"
        )
        return offset

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._bell.ring_doorbell(ALARM + self._backoff, 0, 0)


def _sentence(returned: Returned) -> str:
    return (
        f"a request to handler {returned.handler} of node {returned.node} was returned: the node {returned.reason}; "
        "whether the request was handled is not known"
    )
