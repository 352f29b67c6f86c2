"""The mapper as a daemon of the host, with a privileged endpoint, as in the paper. By default the mapper is a part of
the firmware, and takes no host time.

    async def program(am, node):    # on each node of a run with the firmware setting mapper = "daemon"
        node.spawn(MapperDaemon(am, node).run(), "mapper")
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
    """The clock and the tasks of the daemon's node. Times are nanoseconds."""

    def now(self) -> int: ...

    def sleep(self, nanoseconds: int) -> Awaitable[None]: ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...


class MapperDaemon:
    """One node's mapper daemon. endpoint: its privileged endpoint, in a separate bundle. mapper: the state machine."""

    def __init__(self, library: ActiveMessages, clock: Clock, settings: Settings | None = None) -> None:
        self._clock = clock
        self._arrived: list[bytes] = []
        self._outgoing: deque[bytes | Table] = deque()
        self._is_sending = False
        self._wake_time: int | None = None
        self.endpoint: Final = library.allocate_bundle().allocate_privileged_endpoint()
        self.endpoint.on_probe = self._arrived.append
        identity = MapperIdentity(library.node, library.incarnation, library.address)
        self.mapper: Final = Mapper(identity, self._outgoing.append, self._outgoing.append, settings)

    async def run(self) -> None:
        """Map the network forever."""
        self.mapper.start(self._clock.now())
        self._advance()
        while True:
            await self.endpoint.wait()
            await self.endpoint.poll()
            self._advance()

    def _advance(self) -> None:
        """Pass the arrived packets to the mapper, send the mapper's packets and tables, and schedule its deadline."""
        mapper, now = self.mapper, self._clock.now()
        while self._arrived:
            mapper.receive(now, self._arrived.pop(0))
        if mapper.deadline is not None and mapper.deadline <= now:
            mapper.on_timer(now)
        if self._outgoing and not self._is_sending:
            self._is_sending = True
            self._clock.spawn(self._send(), "the mapper's packets")
        deadline = mapper.deadline
        if deadline is not None and (self._wake_time is None or deadline < self._wake_time):
            self._wake_time = deadline
            self._clock.spawn(self._wake(deadline), "the mapper's deadline")

    async def _send(self) -> None:
        while self._outgoing:
            item = self._outgoing.popleft()
            if isinstance(item, Table):
                await self.endpoint.write_routes(item)
            else:
                await self.endpoint.send_probe(item)
        self._is_sending = False
        self._advance()  # packets may have arrived while this task waited for room

    async def _wake(self, when: int) -> None:
        await self._clock.sleep(max(0, when - self._clock.now()))
        if self._wake_time == when:
            self._wake_time = None
        self._advance()
