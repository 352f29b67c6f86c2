"""Bundles of endpoints, which are polled and waited for together."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.privileged_endpoint import PrivilegedEndpoint
from protocols.core.completion import Completion

if TYPE_CHECKING:
    from protocols.am2.host.library import ActiveMessages


class Bundle:
    """One bundle (eb_t), allocated by the library. parallel: AM_PAR, several tasks may wait for it; otherwise AM_SEQ,
    only one."""

    def __init__(self, library: ActiveMessages, parallel: bool) -> None:
        """For the library only."""
        self.library: Final = library
        self.parallel: Final = parallel
        self.endpoints: Final[list[Endpoint]] = []
        self.changed: Completion[None] | None = None
        """The completion that waiting tasks share."""
        self._waiters = 0  # tasks in `wait`

    def allocate_endpoint(self) -> Endpoint:
        """AM_AllocateEndpoint. Raises ResourceError (AM_ERR_RESOURCE)."""
        return self.library.allocate(self, Endpoint)

    def allocate_privileged_endpoint(self) -> PrivilegedEndpoint:
        """Allocate the endpoint of a mapper daemon; a node has one. Raises ResourceError."""
        endpoint = self.library.allocate(self, PrivilegedEndpoint)
        self.library.driver.privilege(endpoint)
        return endpoint

    def take(self, endpoint: Endpoint) -> None:
        """AM_MoveEndpoint: move an endpoint from another bundle of this node to this one."""
        if endpoint.library is not self.library:
            raise ValueError("an endpoint stays on its node")
        endpoint.bundle.endpoints.remove(endpoint)
        endpoint.bundle = self
        self.endpoints.append(endpoint)

    def poll(self) -> Coroutine[Completion[None], None, int]:
        """AM_Poll, awaited: poll all endpoints. Returns the number of messages handled."""
        return self.library.poll(self.handle, None)

    def handle(self, most: int | None = None) -> int:
        """Poll all endpoints without letting anything else run, each as `Endpoint.handle`."""
        handled = 0
        for endpoint in self.endpoints:
            handled += endpoint.handle(most)
        return handled

    @property
    def is_ready(self) -> bool:
        """Whether `poll` would now handle something that an event mask selects. Endpoints that need a page or room
        request it."""
        ready = [endpoint.is_ready for endpoint in self.endpoints if endpoint.waits]
        return any(ready)

    async def wait(self) -> None:
        """AM_WaitSema: wait until `poll` would handle something at an endpoint whose event mask selects it. Raises
        RuntimeError if another task waits and the bundle is not parallel, ValueError if no event mask selects
        anything."""
        if not any(endpoint.waits for endpoint in self.endpoints):
            raise ValueError("no endpoint's event mask selects anything: this would wait for ever")
        if self._waiters and not self.parallel:
            raise RuntimeError("another task waits for this bundle, which is sequential (AM_SEQ)")
        self._waiters += 1
        try:
            while not self.is_ready:
                await self.change("a message at one of %s endpoints", len(self.endpoints))
        finally:
            self._waiters -= 1

    def change(self, what: str, *about: object) -> Completion[None]:
        """Return the completion of the next change at any endpoint. what, about: see `Completion`."""
        if self.changed is None:
            self.changed = Completion(what, *about)
        return self.changed

    def wake(self) -> None:
        """Wake waiting tasks. For the library only."""
        changed, self.changed = self.changed, None
        if changed is not None:
            changed.complete(None)

    def free(self) -> None:
        """AM_FreeBundle: free the bundle with all its endpoints."""
        for endpoint in self.endpoints.copy():
            endpoint.free()
        self.library.bundles.remove(self)
