"""AM-II's host library of one node, the entry point for programs (the local part of AM_Init).

async def program(am, node):
    endpoint = am.allocate_bundle().allocate_endpoint()    # the first one of the node: EndpointName(am.node, 0)
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
from protocols.am2.nic_memory import HostEndpointFrames
from protocols.am2.settings import Settings
from protocols.core.completion import Completion, Yield
from protocols.core.firmware import Adapter, Host, HostActions
from protocols.core.split_memory import HostSlot

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)

_SINGLE_HOST: Final = HostSlot(0, 1, 1)
_SUBJECT_MASK: Final = layout.SUBJECT_MASK
_SUBJECT_BITS: Final = layout.SUBJECT_BITS
_SLOTS: Final = layout.SLOTS
_ARRIVED_REQUESTS: Final = layout.ARRIVED_REQUESTS
_ARRIVED_REPLIES: Final = layout.ARRIVED_REPLIES
_MASK: Final = 0xFFFF_FFFF
_MULTIPLIER: Final = 0x9E37_79B1  # from the golden ratio: its multiples are spread evenly


class ResourceError(ActiveMessageError):
    """AM_ERR_RESOURCE: no more endpoints are available."""


class ActiveMessages(Host):
    """A node's endpoints and bundles. Implements `protocols.active_messages.am_interface.ActiveMessages`.

    node: this node's number. address: MAC address of the NIC. size: number of nodes. incarnation: of the NIC
    (`Adapter`). host_slot: this process's slot, if several processes share the NIC. is_restarted: the NIC has
    restarted, or another process has had the slot. handling_endpoint: the endpoint whose handler is running, or None.
    observer: notified of all messages.
    """

    def __init__(
        self,
        adapter: Adapter,
        nic: HostActions,
        memory: HostEndpointFrames,
        settings: Settings,
        host_slot: HostSlot = _SINGLE_HOST,
    ) -> None:
        self.node: Final = adapter.number
        self.address: Final = adapter.address
        self.size: Final = len(adapter.addresses)
        self.incarnation: Final = adapter.incarnation
        self.settings: Final = settings
        self.nic: Final = nic
        self.memory: Final = memory
        self.host_slot: Final = host_slot
        self.is_restarted: Final = adapter.is_restarted or host_slot.turn > 1
        self._first_number = host_slot.number * settings.numbers_per_host
        self.max_short: Final = layout.MAX_ARGUMENTS
        """AM_MaxShort: maximum number of arguments."""
        self.max_medium: Final = settings.medium
        """AM_MaxMedium: maximum bytes of data, limited by the MTU."""
        self.max_bulk: Final = 0xFFFF_FFFF
        """AM_MaxLong, AM_MaxSegLength: maximum bytes of a bulk message and of a segment."""
        self.driver: Final = SegmentDriver(nic, memory, settings, self)
        self.bundles: Final[list[Bundle]] = []
        self.handling_endpoint: Endpoint | None = None
        self.observer: Observer | None = None
        self.use_count = 0
        """Number of uses of endpoints, by which the least recently used endpoint is found."""
        self._has_unawaited_poll = False
        self._endpoints: dict[int, Endpoint] = {}
        self._releasing: set[int] = set()  # freed endpoints that the NIC has not released yet
        # Number of the last request of each freed endpoint, by the endpoint's number: a late reply must not match a
        # request of the next endpoint with that number. For the same reason, the successive processes of a host slot
        # begin with different request numbers.
        self._last_requests: dict[int, int] = {}
        self._next_index = 0

    @property
    def window(self) -> int:
        """Maximum number of unanswered requests to another endpoint."""
        return self.settings.credits

    def medium_room(self, words: int) -> int:  # noqa: ARG002
        """Return the maximum bytes of data of a medium message; its words do not reduce them."""
        return self.max_medium

    def allocate_bundle(self, *, parallel: bool = True) -> Bundle:
        """AM_AllocateBundle. parallel: AM_PAR; otherwise AM_SEQ."""
        bundle = Bundle(self, parallel)
        self.bundles.append(bundle)
        return bundle

    def program_ended(self) -> None:
        """Do nothing: the NIC resends and answers without the program."""

    def allocate(self, bundle: Bundle, kind: type[AnyEndpoint]) -> AnyEndpoint:
        """Allocate an endpoint of the class `kind`; see `Bundle.allocate_endpoint`."""
        settings = self.settings
        limit = settings.endpoints if settings.virtual else min(settings.endpoints, settings.frames)
        if len(self._endpoints) >= limit or len(self._endpoints) + len(self._releasing) >= settings.numbers_per_host:
            raise ResourceError(
                f"all {limit} endpoints are in use, or freed and not released by the NIC yet: free one, and wait"
            )
        number = self._first_number + self._next_index
        while number in self._endpoints or number in self._releasing:
            self._next_index = (self._next_index + 1) % settings.numbers_per_host
            number = self._first_number + self._next_index
        self._next_index = (self._next_index + 1) % settings.numbers_per_host
        last_request = self._last_requests.get(number, (self.host_slot.turn - 1) * _MULTIPLIER & _MASK)
        endpoint = self._endpoints[number] = kind(self, bundle, number, last_request)
        bundle.endpoints.append(endpoint)
        self.driver.create(endpoint)
        return endpoint

    def free(self, endpoint: Endpoint) -> None:
        """Free an endpoint; see `Endpoint.free`. Raises ValueError within a handler of the endpoint."""
        if self.handling_endpoint is endpoint:
            raise ValueError("an endpoint cannot be freed by one of its handlers")
        if self._endpoints.pop(endpoint.name.endpoint, None) is None:
            return
        endpoint.is_freed = True
        endpoint.bundle.endpoints.remove(endpoint)
        self._releasing.add(endpoint.name.endpoint)
        self._last_requests[endpoint.name.endpoint] = endpoint.outbox.last_request
        if self.observer is not None:
            self.observer.endpoint_freed(endpoint.name.endpoint)
        self.driver.destroy(endpoint)

    def poll(self, handle: Callable[[int | None], int], limit: int | None) -> Coroutine[Completion[None], None, int]:
        """Poll, as described in `Endpoint.poll`. handle: calls the handlers of at most `limit` messages, and returns
        their number."""
        if self.handling_endpoint is not None:
            raise RuleError("a handler may not poll")
        if self._has_unawaited_poll:
            self._has_unawaited_poll = False
            raise RuleError(
                "the previous poll() was not awaited, so that no message was handled and none can arrive: write "
                "'await endpoint.poll()'"
            )
        self._has_unawaited_poll = True
        return self._poll(handle, limit)

    async def _poll(self, handle: Callable[[int | None], int], limit: int | None) -> int:
        self._has_unawaited_poll = False
        handled = handle(limit)
        if not handled:
            await Yield()
            handled = handle(limit)
        return handled

    @property
    def life(self) -> int:
        """The NIC's incarnation; see `protocols.active_messages.observer.Observable`."""
        return self.incarnation

    def unhandled(self) -> Sequence[Unhandled]:
        """Return the numbers of arrived and unhandled messages; see `protocols.active_messages.observer.Observable`."""
        counts = [
            Unhandled(number, endpoint.inbox.request_count, endpoint.inbox.reply_count + len(endpoint.inbox.unanswered))
            for number, endpoint in self._endpoints.items()
        ]
        return [unhandled for unhandled in counts if unhandled.requests or unhandled.answers]

    @property
    def rank(self) -> int:
        """This process's rank among the processes of all nodes, numbered node by node. Every node has the same number
        of processes."""
        return self.node * self.host_slot.slots + self.host_slot.number

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.size * self.host_slot.slots

    def name_of(self, rank: int) -> EndpointName:
        """Return the name of a process's first endpoint."""
        node, slot = divmod(rank, self.host_slot.slots)
        return EndpointName(node, slot * self.settings.numbers_per_host)

    def rank_of(self, name: EndpointName) -> int:
        """Return the rank of the process that has an endpoint."""
        return name.node * self.host_slot.slots + name.endpoint // self.settings.numbers_per_host

    def endpoint(self, number: int) -> Endpoint:
        """Return an endpoint of this process by its number. Raises LookupError."""
        return self._endpoints[number]

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints of this process."""
        return list(self._endpoints.values())

    def terminate(self) -> None:
        """AM_Terminate: free all bundles."""
        for bundle in self.bundles.copy():
            bundle.free()

    def on_completion(self, index: int) -> bool | None:
        """Handle a notification of the NIC: see `page`."""
        subject, number = index & _SUBJECT_MASK, index >> _SUBJECT_BITS
        endpoint = self._endpoints.get(number)
        if subject < _SLOTS and endpoint is not None:  # the most frequent case
            self.use_count = endpoint.last_use = self.use_count + 1
            if subject >= _ARRIVED_REPLIES:
                endpoint.inbox.reply_count += 1
            elif subject >= _ARRIVED_REQUESTS:
                endpoint.inbox.request_count += 1
            else:
                endpoint.outbox.on_slot_free(subject)
            endpoint.wake()
        elif subject == layout.OWED:
            for own, requester in self._endpoints.items():
                if requester.awaits(number):
                    subject = (number << layout.ENDPOINT_BITS | own) << _SUBJECT_BITS | layout.AWAITED
                    self.nic.ring_doorbell(subject, 0, 0)
                    break
            return False
        elif subject == layout.LOST:
            for requester in self._endpoints.values():
                requester.abandon_unreachable(number)
        elif subject == layout.GONE:
            for requester in self._endpoints.values():
                requester.abandon_unreachable(*divmod(number, 1 << layout.ENDPOINT_BITS))
        elif subject == layout.LOST_REPLY:
            replied, number = divmod(number, 1 << layout.ENDPOINT_BITS)
            if (owner := self._endpoints.get(number)) is not None:
                owner.abandon_replied(*divmod(replied, 1 << layout.NODE_BITS))
        elif subject == layout.UNMAPPED:
            endpoint = self._endpoints.get(number >> layout.SUBJECT_BITS)
            if endpoint is not None:
                self.driver.on_unmapped(endpoint, number & layout.SUBJECT_MASK)
        elif endpoint is None:
            if subject == layout.UNLOADED:
                self._releasing.discard(number)
            self.driver.on_destroyed(number, subject)
        else:
            self.use_count = endpoint.last_use = self.use_count + 1
            self.driver.on_interrupt(endpoint, subject)
        return None

    def pending_work(self) -> list[str]:
        sentences = [sentence for endpoint in self._endpoints.values() for sentence in endpoint.pending_work()]
        return sentences + self.driver.pending_work()
