"""AM-II's host library, of one node: what a program begins with (AM_Init, as far as it is concerned).

async def program(am, node):
    endpoint = am.allocate_bundle().allocate_endpoint()    # EndpointName(node.number, 0): its first one
    endpoint.tag = 7
    endpoint.set_handler(1, lambda token, word: token.reply(2, word + 1))
    endpoint.set_handler(2, lambda token, word: print(word))
    endpoint.map(0, EndpointName(1 - am.node, 0), 7)
    await endpoint.request(0, 1, 41)
    while not endpoint.poll():
        await endpoint.wait()
"""

from __future__ import annotations

from typing import Final

from protocols.am2 import page as layout
from protocols.am2.host.bundle import Bundle
from protocols.am2.host.driver import SegmentDriver
from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.errors import ActiveMessageError
from protocols.am2.host.names import EndpointName
from protocols.am2.nic_memory import Backing
from protocols.am2.settings import Settings
from protocols.core.apart import Place
from protocols.core.firmware import Adapter, Bell

_ALONE: Final = Place(0, 1, 1)
_SUBJECT: Final = layout.SUBJECT
_SUBJECTS: Final = layout.SUBJECTS
_SLOTS: Final = layout.SLOTS
_ARRIVED_REQUESTS: Final = layout.ARRIVED_REQUESTS
_ARRIVED_REPLIES: Final = layout.ARRIVED_REPLIES
_MASK: Final = 0xFFFF_FFFF
_ODD: Final = 0x9E37_79B1  # bits of the golden ratio: multiples of it lie as far from each other as they can


class ResourceError(ActiveMessageError):
    """AM_ERR_RESOURCE: there are no more endpoints to be had."""


class ActiveMessages:
    """Implements `protocols.core.firmware.Host`. node: this one's number; size: how many nodes there are. incarnation: of
    its NIC (`Adapter`). place: of this process, where several share the NIC. handling: the endpoint of which a handler
    runs."""

    def __init__(
        self, adapter: Adapter, bell: Bell, memory: Backing, settings: Settings, place: Place = _ALONE
    ) -> None:
        self.node: Final = adapter.number
        self.size: Final = len(adapter.addresses)
        self.incarnation: Final = adapter.incarnation
        self.settings: Final = settings
        self.bell: Final = bell
        self.memory: Final = memory
        self.place: Final = place
        self._first = place.number * settings.numbers
        self.most_short: Final = layout.MOST_ARGUMENTS
        """AM_MaxShort: arguments."""
        self.most_medium: Final = settings.medium
        """AM_MaxMedium: bytes of data, as the MTU permits."""
        self.most_bulk: Final = 0xFFFF_FFFF
        """AM_MaxLong, AM_MaxSegLength: bytes."""
        self.driver: Final = SegmentDriver(bell, memory, settings, self)
        self.bundles: Final[list[Bundle]] = []
        self.handling: Endpoint | None = None
        self.used = 0
        """Counts what happens to endpoints."""
        self._endpoints: dict[int, Endpoint] = {}
        self._going: set[int] = set()  # endpoints that are not there any more, and of which the NIC has not let go
        # The numbers of their last requests: replies may come yet, and whoever has the endpoint's number next must not have
        # asked that. In another life of this place requests begin elsewhere.
        self._messages: dict[int, int] = {}
        self._next = 0

    def allocate_bundle(self, *, parallel: bool = True) -> Bundle:
        """AM_AllocateBundle. parallel: AM_PAR; else AM_SEQ."""
        bundle = Bundle(self, parallel)
        self.bundles.append(bundle)
        return bundle

    def allocate_endpoint(self, bundle: Bundle) -> Endpoint:
        """See `Bundle.allocate_endpoint`."""
        settings = self.settings
        most = settings.endpoints if settings.virtual else min(settings.endpoints, settings.frames)
        if len(self._endpoints) >= most or len(self._endpoints) + len(self._going) >= settings.numbers:
            raise ResourceError(f"there are {most} endpoints already")
        number = self._first + self._next
        while number in self._endpoints or number in self._going:
            self._next = (self._next + 1) % settings.numbers
            number = self._first + self._next
        self._next = (self._next + 1) % settings.numbers
        message = self._messages.get(number, (self.place.turn - 1) * _ODD & _MASK)
        endpoint = self._endpoints[number] = Endpoint(self, bundle, number, message)
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
        self._going.add(endpoint.name.endpoint)
        self._messages[endpoint.name.endpoint] = endpoint.outbox.number
        self.driver.destroy(endpoint)

    @property
    def rank(self) -> int:
        """This process's, among those of all nodes, node by node, where each node has as many."""
        return self.node * self.place.of + self.place.number

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.size * self.place.of

    def name_of(self, rank: int) -> EndpointName:
        """A process's first endpoint."""
        node, place = divmod(rank, self.place.of)
        return EndpointName(node, place * self.settings.numbers)

    def rank_of(self, name: EndpointName) -> int:
        """Of the process that has an endpoint."""
        return name.node * self.place.of + name.endpoint // self.settings.numbers

    def endpoint(self, number: int) -> Endpoint:
        """One of this node's. Raises LookupError."""
        return self._endpoints[number]

    @property
    def endpoints(self) -> list[Endpoint]:
        """All that there are."""
        return list(self._endpoints.values())

    def terminate(self) -> None:
        """AM_Terminate: all bundles are freed."""
        for bundle in self.bundles.copy():
            bundle.free()

    def completed(self, index: int) -> None:
        """The NIC shows something: see `page`."""
        subject, number = index & _SUBJECT, index >> _SUBJECTS
        endpoint = self._endpoints.get(number)
        if subject < _SLOTS and endpoint is not None:  # what most are
            self.used = endpoint.used = self.used + 1
            if subject >= _ARRIVED_REPLIES:
                endpoint.inbox.replies += 1
            elif subject >= _ARRIVED_REQUESTS:
                endpoint.inbox.requests += 1
            else:
                endpoint.outbox.answered(subject)
            endpoint.changed()
        elif subject == layout.RESTARTED:
            for one in self._endpoints.values():
                one.forsaken(number)
        elif subject == layout.GONE:
            for one in self._endpoints.values():
                one.forsaken(*divmod(number, 1 << layout.NAMES))
        elif subject == layout.UNMAPPED:
            endpoint = self._endpoints.get(number >> layout.SUBJECTS)
            if endpoint is not None:
                self.driver.map(endpoint, number & layout.SUBJECT)
        elif endpoint is None:
            if subject == layout.UNLOADED:
                self._going.discard(number)
            self.driver.gone(number, subject)
        else:
            self.used = endpoint.used = self.used + 1
            self.driver.told(endpoint, subject)

    def waiting(self) -> list[str]:
        out = [sentence for endpoint in self._endpoints.values() for sentence in endpoint.waiting()]
        return out + self.driver.waiting()
