"""AM-II's host library of one node, the entry point for programs (the local part of AM_Init).

async def program(am, node):
    endpoint = am.allocate_bundle().allocate_endpoint()    # EndpointName(node.number, 0): its first one
    endpoint.tag = 7
    endpoint.set_handler(1, lambda token, word: token.reply(2, word + 1))
    endpoint.set_handler(2, lambda token, word: print(word))
    endpoint.map(0, EndpointName(1 - am.node, 0), 7)
    await endpoint.request(0, 1, 41)
    while not await endpoint.poll():
        await endpoint.wait()
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVar

from protocols.active_messages.am_errors import ActiveMessageError, RuleError
from protocols.active_messages.endpoint_names import EndpointName, Unhandled
from protocols.active_messages.observer import Observer
from protocols.am2 import page as layout
from protocols.am2.host.bundle import Bundle
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.segment_driver import SegmentDriver
from protocols.am2.nic_memory import Backing
from protocols.am2.settings import Settings
from protocols.core.completion import Completion, Yield
from protocols.core.firmware import Adapter, HostActions
from protocols.core.split_memory import HostSlot

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)

_ALONE: Final = HostSlot(0, 1, 1)
_SUBJECT: Final = layout.SUBJECT
_SUBJECTS: Final = layout.SUBJECTS
_SLOTS: Final = layout.SLOTS
_ARRIVED_REQUESTS: Final = layout.ARRIVED_REQUESTS
_ARRIVED_REPLIES: Final = layout.ARRIVED_REPLIES
_MASK: Final = 0xFFFF_FFFF
_ODD: Final = 0x9E37_79B1  # from the golden ratio: its multiples spread evenly


class ResourceError(ActiveMessageError):
    """AM_ERR_RESOURCE: no more endpoints are available."""


class ActiveMessages:
    """A node's endpoints and bundles. Implements `protocols.core.firmware.Host` and
    `protocols.active_messages.am_interface.ActiveMessages`.

    node: this node's number. address: its NIC's MAC. size: number of nodes. incarnation: of the NIC (`Adapter`). place:
    this process's slot, if several share the NIC. is_restarted: the NIC has restarted, or another process has had the
    slot. handling: the endpoint whose handler is running. observer: it is notified of all messages.
    """

    def __init__(
        self, adapter: Adapter, bell: HostActions, memory: Backing, settings: Settings, place: HostSlot = _ALONE
    ) -> None:
        self.node: Final = adapter.number
        self.address: Final = adapter.address
        self.size: Final = len(adapter.addresses)
        self.incarnation: Final = adapter.incarnation
        self.settings: Final = settings
        self.bell: Final = bell
        self.memory: Final = memory
        self.place: Final = place
        self.is_restarted: Final = adapter.is_restarted or place.turn > 1
        self._first = place.number * settings.numbers
        self.max_short: Final = layout.MAX_ARGUMENTS
        """AM_MaxShort: number of arguments."""
        self.max_medium: Final = settings.medium
        """AM_MaxMedium: bytes of data, limited by the MTU."""
        self.max_bulk: Final = 0xFFFF_FFFF
        """AM_MaxLong, AM_MaxSegLength: bytes."""
        self.driver: Final = SegmentDriver(bell, memory, settings, self)
        self.bundles: Final[list[Bundle]] = []
        self.handling: Endpoint | None = None
        self.observer: Observer | None = None
        self.used = 0
        """Number of uses of endpoints so far, by which the least recently used one is found."""
        self._polls = False  # a poll has been called and not awaited yet
        self._endpoints: dict[int, Endpoint] = {}
        self._releasing: set[int] = set()  # freed endpoints that the NIC has not released yet
        # The numbers of freed endpoints' last requests: late replies must not match requests of the next endpoint with
        # that number. After a restart of this process, request numbers begin elsewhere.
        self._messages: dict[int, int] = {}
        self._next = 0

    @property
    def window(self) -> int:
        """Requests to another endpoint without a reply: the credits."""
        return self.settings.credits

    def medium_room(self, words: int) -> int:  # noqa: ARG002
        """See `protocols.active_messages.am_interface.ActiveMessages`: words take none of the data's room."""
        return self.max_medium

    def allocate_bundle(self, *, parallel: bool = True) -> Bundle:
        """AM_AllocateBundle. parallel: AM_PAR; otherwise AM_SEQ."""
        bundle = Bundle(self, parallel)
        self.bundles.append(bundle)
        return bundle

    def program_ended(self) -> None:
        """Do nothing: the NIC goes on by itself. See `protocols.active_messages.am_interface.ActiveMessages`."""

    def allocate(self, bundle: Bundle, kind: type[AnyEndpoint]) -> AnyEndpoint:
        """See `Bundle.allocate_endpoint`."""
        settings = self.settings
        most = settings.endpoints if settings.virtual else min(settings.endpoints, settings.frames)
        if len(self._endpoints) >= most or len(self._endpoints) + len(self._releasing) >= settings.numbers:
            raise ResourceError(f"there are {most} endpoints already")
        number = self._first + self._next
        while number in self._endpoints or number in self._releasing:
            self._next = (self._next + 1) % settings.numbers
            number = self._first + self._next
        self._next = (self._next + 1) % settings.numbers
        message = self._messages.get(number, (self.place.turn - 1) * _ODD & _MASK)
        endpoint = self._endpoints[number] = kind(self, bundle, number, message)
        bundle.endpoints.append(endpoint)
        self.driver.create(endpoint)
        return endpoint

    def free(self, endpoint: Endpoint) -> None:
        """See `Endpoint.free`."""
        if self.handling is endpoint:
            raise ValueError("an endpoint cannot be freed by its own handler")
        if self._endpoints.pop(endpoint.name.endpoint, None) is None:
            return
        endpoint.bundle.endpoints.remove(endpoint)
        self._releasing.add(endpoint.name.endpoint)
        self._messages[endpoint.name.endpoint] = endpoint.outbox.number
        if self.observer is not None:
            self.observer.endpoint_freed(endpoint.name.endpoint)
        self.driver.destroy(endpoint)

    def poll(self, handle: Callable[[int | None], int], most: int | None) -> Coroutine[Completion[None], None, int]:
        """See `Endpoint.poll`. handle: calls handlers, of at most `most` messages, and returns their number."""
        if self.handling is not None:
            raise RuleError("a handler may not poll")
        if self._polls:
            self._polls = False
            raise RuleError(
                "the poll() before this one was not awaited, so nothing was handled and nothing can arrive: write "
                "'await endpoint.poll()'"
            )
        self._polls = True
        return self._poll(handle, most)

    async def _poll(self, handle: Callable[[int | None], int], most: int | None) -> int:
        self._polls = False
        handled = handle(most)
        if not handled:
            await Yield()
            handled = handle(most)
        return handled

    @property
    def life(self) -> int:
        """The NIC's incarnation: see `protocols.active_messages.observer`."""
        return self.incarnation

    def unhandled(self) -> Sequence[Unhandled]:
        """See `protocols.active_messages.observer.Observable`."""
        counts = [
            Unhandled(number, endpoint.inbox.requests, endpoint.inbox.replies + len(endpoint.inbox.lost))
            for number, endpoint in self._endpoints.items()
        ]
        return [unhandled for unhandled in counts if unhandled.requests or unhandled.answers]

    @property
    def rank(self) -> int:
        """This process's rank among those of all nodes, numbered node by node; each node has equally many."""
        return self.node * self.place.slots + self.place.number

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.size * self.place.slots

    def name_of(self, rank: int) -> EndpointName:
        """Return the name of a process's first endpoint."""
        node, place = divmod(rank, self.place.slots)
        return EndpointName(node, place * self.settings.numbers)

    def rank_of(self, name: EndpointName) -> int:
        """Return the rank of the process that has an endpoint."""
        return name.node * self.place.slots + name.endpoint // self.settings.numbers

    def endpoint(self, number: int) -> Endpoint:
        """Return one of this node's endpoints. Raises LookupError."""
        return self._endpoints[number]

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints of this node."""
        return list(self._endpoints.values())

    def terminate(self) -> None:
        """AM_Terminate: free all bundles."""
        for bundle in self.bundles.copy():
            bundle.free()

    def completed(self, index: int) -> None:
        """Handle a notification of the NIC: see `page`."""
        subject, number = index & _SUBJECT, index >> _SUBJECTS
        endpoint = self._endpoints.get(number)
        if subject < _SLOTS and endpoint is not None:  # the most frequent case
            self.used = endpoint.used = self.used + 1
            if subject >= _ARRIVED_REPLIES:
                endpoint.inbox.replies += 1
            elif subject >= _ARRIVED_REQUESTS:
                endpoint.inbox.requests += 1
            else:
                endpoint.outbox.answered(subject)
            endpoint.changed()
        elif subject == layout.RESTARTED:
            for each in self._endpoints.values():
                each.abandon_unreachable(number)
        elif subject == layout.GONE:
            for each in self._endpoints.values():
                each.abandon_unreachable(*divmod(number, 1 << layout.NAMES))
        elif subject == layout.UNMAPPED:
            endpoint = self._endpoints.get(number >> layout.SUBJECTS)
            if endpoint is not None:
                self.driver.map(endpoint, number & layout.SUBJECT)
        elif endpoint is None:
            if subject == layout.UNLOADED:
                self._releasing.discard(number)
            self.driver.release(number, subject)
        else:
            self.used = endpoint.used = self.used + 1
            self.driver.on_interrupt(endpoint, subject)

    def waiting(self) -> list[str]:
        out = [sentence for endpoint in self._endpoints.values() for sentence in endpoint.waiting()]
        return out + self.driver.waiting()
