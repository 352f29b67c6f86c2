"""The mapper as a daemon of the host, by a privileged endpoint, as in the paper. (By default the mapper is a part of the
firmware, which takes no time of hosts.)

async def program(am, node):
    node.spawn(MapperDaemon(am, node).run(), "mapper")    # in each node of a run with firmware setting mapper = "daemon"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, Protocol

from protocols.am2.host.library import ActiveMessages
from protocols.myrinet.mapper.mapper import Mapper, MapperIdentity
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import Settings


class Clock(Protocol):
    """Time on the daemon's node, in nanoseconds, and its tasks."""

    def now(self) -> int: ...

    def sleep(self, nanoseconds: int) -> Awaitable[None]: ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...


class MapperDaemon:
    """One node's mapper. endpoint: its privileged endpoint, in a bundle of its own."""

    def __init__(self, library: ActiveMessages, clock: Clock, settings: Settings | None = None) -> None:
        self._clock = clock
        self._arrived: list[bytes] = []
        self._outgoing: deque[bytes | Table] = deque()
        self._is_sending = False
        self._wakes_at: int | None = None
        self.endpoint: Final = library.allocate_bundle().allocate_privileged_endpoint()
        self.endpoint.on_probe = self._arrived.append
        identity = MapperIdentity(library.node, library.incarnation, library.address)
        self.mapper: Final = Mapper(identity, self._outgoing.append, self._outgoing.append, settings)

    async def run(self) -> None:
        """Map the network for ever."""
        self.mapper.start(self._clock.now())
        self._go_on()
        while True:
            await self.endpoint.wait()
            await self.endpoint.poll()
            self._go_on()

    def _go_on(self) -> None:
        """Give the mapper what has arrived; then send what it wants to, and wake at its deadline."""
        mapper, now = self.mapper, self._clock.now()
        while self._arrived:
            mapper.receive(now, self._arrived.pop(0))
        if mapper.deadline is not None and mapper.deadline <= now:
            mapper.on_timer(now)
        if self._outgoing and not self._is_sending:
            self._is_sending = True
            self._clock.spawn(self._send(), "the mapper's packets")
        deadline = mapper.deadline
        if deadline is not None and (self._wakes_at is None or deadline < self._wakes_at):
            self._wakes_at = deadline
            self._clock.spawn(self._wake(deadline), "the mapper's deadline")

    async def _send(self) -> None:
        while self._outgoing:
            outgoing = self._outgoing.popleft()
            if isinstance(outgoing, Table):
                await self.endpoint.write_routes(outgoing)
            else:
                await self.endpoint.send_probe(outgoing)
        self._is_sending = False
        self._go_on()  # packets may have arrived while it waited for room

    async def _wake(self, when: int) -> None:
        await self._clock.sleep(max(0, when - self._clock.now()))
        if self._wakes_at == when:
            self._wakes_at = None
        self._go_on()
