"""Bundles: groups of endpoints that are polled together."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.privileged_endpoint import PrivilegedEndpoint
from protocols.core.completion import Completion

if TYPE_CHECKING:
    from protocols.am2.host.library import ActiveMessages


class Bundle:
    """One bundle (eb_t), allocated by the library. parallel: AM_PAR, several tasks may wait for the bundle at a time;
    otherwise AM_SEQ, one task."""

    def __init__(self, library: ActiveMessages, parallel: bool) -> None:
        """For the library only."""
        self.library: Final = library
        self.parallel: Final = parallel
        self.endpoints: Final[list[Endpoint]] = []
        self.change: Completion[None] | None = None
        """Completion of the next change, shared by the waiting tasks; None: no task waits."""
        self._waiters = 0  # tasks in `wait`

    def allocate_endpoint(self) -> Endpoint:
        """AM_AllocateEndpoint. Raises ResourceError (AM_ERR_RESOURCE)."""
        return self.library.allocate(self, Endpoint)

    def allocate_privileged_endpoint(self) -> PrivilegedEndpoint:
        """Allocate the endpoint of a mapper daemon; a node has one. Raises ResourceError."""
        endpoint = self.library.allocate(self, PrivilegedEndpoint)
        self.library.driver.privilege(endpoint)
        return endpoint

    def move(self, endpoint: Endpoint) -> None:
        """AM_MoveEndpoint: move an endpoint from another bundle of this node to this one. Tasks that wait for either
        bundle are woken, since a send from this endpoint now waits for this bundle. Raises ValueError for an endpoint
        of another node."""
        if endpoint.library is not self.library:
            raise ValueError("an endpoint cannot be moved to a bundle of another node")
        former = endpoint.bundle
        former.endpoints.remove(endpoint)
        endpoint.bundle = self
        self.endpoints.append(endpoint)
        former.wake()
        self.wake()

    def poll(self) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: poll all endpoints. Returns the number of messages handled."""
        return self.library.poll(self.handle, None)

    def handle(self, limit: int | None = None) -> int:
        """Poll all endpoints, each by `Endpoint.handle`. Returns the number of messages handled."""
        handled = 0
        for endpoint in self.endpoints:
            handled += endpoint.handle(limit)
        return handled

    @property
    def is_ready(self) -> bool:
        """Whether `poll` would now handle a message at an endpoint whose event mask selects messages. See
        `Endpoint.is_ready`."""
        ready = [endpoint.is_ready for endpoint in self.endpoints if endpoint.has_events]  # all: it loads them
        return any(ready)

    async def wait(self) -> None:
        """AM_WaitSema: wait until `poll` would handle a message at an endpoint whose event mask selects messages.
        Raises RuntimeError if another task waits and the bundle is not parallel, and ValueError if no event mask
        selects an event, or none does any more since endpoints have been freed or moved."""
        if self._waiters and not self.parallel:
            raise RuntimeError("another task waits for this bundle, which is sequential (AM_SEQ)")
        self._waiters += 1
        try:
            while not self.is_ready:
                if not any(endpoint.has_events for endpoint in self.endpoints):
                    raise ValueError("no endpoint's event mask selects an event: this would wait forever")
                await self.next_change("a message at one of %s endpoints", len(self.endpoints))
        finally:
            self._waiters -= 1

    def next_change(self, what: str, *about: object) -> Completion[None]:
        """Return the completion of the next change at any endpoint. what, about: see `Completion`."""
        if self.change is None:
            self.change = Completion(what, *about)
        return self.change

    def wake(self) -> None:
        """Wake waiting tasks. For the library only."""
        change, self.change = self.change, None
        if change is not None:
            change.complete(None)

    def free(self) -> None:
        """AM_FreeBundle: free the bundle with all its endpoints. Raises ValueError within a handler of one of them: the
        bundle, this endpoint and those after it are not freed."""
        for endpoint in self.endpoints.copy():
            endpoint.free()
        self.library.bundles.remove(self)
