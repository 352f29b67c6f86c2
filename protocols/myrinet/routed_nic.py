"""A NIC of a source-routed network, for firmware without source routing.

The firmware sends and receives frames in its codec's form, addressed by MAC. Below it, a router adds the destination's
route and Myrinet's CRC-8 to sent frames, and removes both from received frames (`envelope`). The NIC's mapper provides
the routes (`mapper`). A frame to a NIC without a known route is dropped and counted; the firmware's protocol resends it
like a lost frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from protocols.core.firmware import Adapter, Agent, Buffer, Firmware, Nic, Plug
from protocols.core.malformed import MalformedError
from protocols.core.memory import SharedDmaMemory
from protocols.core.split_memory import OnDoorbell, SharedActions, SharedNic, SplitDriver
from protocols.myrinet.envelope import ETHERNET, MAX_HOPS, add_envelope, remove_envelope
from protocols.myrinet.fields import MAPPING
from protocols.myrinet.mapper.follower import make_mapper, paths_to_functions
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import Settings

FRAMING: Final = "source routes"
"""The framing of source-routed networks (`protocols.core.protocol.Protocol.framings`)."""

_MAX_ENVELOPE_SIZE: Final = MAX_HOPS + 3
"""Maximum bytes that Myrinet adds to a frame: route, packet type, CRC-8."""
_MAPPING_TYPE: Final = MAPPING.to_bytes(2, "big")
_MAPPER_SETTINGS: Final = Settings()


class Router:
    """The routes of a NIC, by MAC, and the NIC's mapper. is_mapped: whether routes have been installed. counters:
    numbers of dropped frames; `unrouted`: no route is known; `envelope_*`: errors of received frames
    (`envelope.remove_envelope`)."""

    def __init__(
        self,
        adapter: Adapter,
        send: Callable[[bytes], bool | None],
        send_later: Callable[[Callable[[], bytes]], object],
        settings: Settings = _MAPPER_SETTINGS,
    ) -> None:
        self._adapter: Final = adapter
        self._send: Final = send
        self._send_later: Final = send_later
        self._routes = {adapter.address: b""}
        self.is_mapped = False
        self.mapper: Final = make_mapper(adapter, self._send_mapping, self._install, settings)
        self.counters: Final = dict.fromkeys(("unrouted", "envelope_short", "envelope_route", "envelope_crc8"), 0)

    def send(self, frame: Buffer) -> bool | None:
        """Send a frame of the firmware along its route; see `FirmwareActions.send`."""
        route = self._route(frame)
        return None if route is None else self._send(add_envelope(bytes(frame), route))

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Send a low-priority frame along its route; see `FirmwareActions.send_later`. `make` is called at once, since
        the frame's MAC selects the route."""
        frame = make()
        route = self._route(frame)
        if route is not None:
            self._send_later(partial(add_envelope, frame, route))

    def unwrap(self, frame: bytes) -> bytes | None:
        """Convert a received frame to the firmware's form. Counts an invalid frame, and returns None for it."""
        try:
            return remove_envelope(frame)
        except MalformedError as error:
            self.counters[f"envelope_{error.reason}"] += 1
            return None

    def _route(self, frame: Buffer) -> bytes | None:
        route = self._routes.get(bytes(frame[:6]))
        if route is None:
            self.counters["unrouted"] += 1
        return route

    def _send_mapping(self, frame: bytes) -> None:
        """Send a mapping packet without queueing behind data transfers."""
        self._send_later(lambda: frame)

    def _install(self, table: Table) -> None:
        self.is_mapped = True
        adapter = self._adapter
        paths = paths_to_functions(adapter, table)
        self._routes = {adapter.address: b""} | {
            adapter.addresses[number]: path.route
            for number, path in paths.items()
            if number < len(adapter.addresses) and len(path.route) <= MAX_HOPS
        }


class RoutedFirmware:
    """A NIC's firmware above a router. Implements `protocols.core.firmware.Firmware`. firmware: the current one; a
    shared NIC may replace it when a host attaches or detaches."""

    def __init__(self, router: Router, firmware: Firmware) -> None:
        self.firmware = firmware
        self._router: Final = router
        self._mapper: Final = router.mapper
        self._is_started = False

    @property
    def deadline(self) -> int | None:
        if not self._is_started:
            return 0
        mapper, firmware = self._mapper.deadline, self.firmware.deadline
        return firmware if mapper is None else mapper if firmware is None else min(mapper, firmware)

    def receive(self, now: int, frame: bytes) -> None:
        if frame[ETHERNET : ETHERNET + 2] == _MAPPING_TYPE:
            self._mapper.receive(now, frame)
        elif (unwrapped := self._router.unwrap(frame)) is not None:
            self.firmware.receive(now, unwrapped)

    def on_doorbell(self, now: int, index: int) -> None:
        self.firmware.on_doorbell(now, index)

    def on_timer(self, now: int) -> None:
        mapper, firmware = self._mapper, self.firmware
        if not self._is_started:
            self._is_started = True
            mapper.start(now)
        if mapper.deadline is not None and mapper.deadline <= now:
            mapper.on_timer(now)
        if firmware.deadline is not None and firmware.deadline <= now:
            firmware.on_timer(now)

    def counter_values(self) -> Mapping[str, int]:
        mapping = {f"mapper_{name}": count for name, count in self._mapper.counter_values().items()}
        return {**self.firmware.counter_values(), **self._router.counters, **mapping}

    def pending_work(self) -> list[str]:
        unmapped = [] if self._router.is_mapped else ["no map of the network has arrived yet"]
        return [*self.firmware.pending_work(), *unmapped]


class _InlineActions:
    """The actions of a NIC, with frames sent by a router. Implements `Nic`."""

    def __init__(self, router: Router, nic: Nic) -> None:
        self.send, self.send_later = router.send, router.send_later
        self.dma_read, self.dma_write, self.when_sent = nic.dma_read, nic.dma_write, nic.when_sent
        self.post_completion, self.interrupt, self.ring_doorbell = nic.post_completion, nic.interrupt, nic.ring_doorbell


class _SharedActions:
    """The actions of a shared NIC, with frames sent by a router. Implements `SharedActions`."""

    def __init__(self, router: Router, nic: SharedActions) -> None:
        self.send, self.send_later = router.send, router.send_later
        self.dma_read, self.dma_write, self.when_sent = nic.dma_read, nic.dma_write, nic.when_sent
        self.post_completion = nic.post_completion


class _RoutedSharedNic:
    """A shared NIC above a router. Implements `SharedNic`."""

    def __init__(
        self, adapter: Adapter, nic: SharedActions, make: Callable[[Adapter, SharedActions], SharedNic]
    ) -> None:
        router = Router(adapter, nic.send, nic.send_later)
        self._mtu = adapter.mtu
        self._nic = make(_inner_adapter(adapter), _SharedActions(router, nic))
        self.firmware: Final = RoutedFirmware(router, self._nic.firmware)

    @property
    def adapter(self) -> Adapter:
        return replace(self._nic.adapter, mtu=self._mtu)

    def attach(self, now: int, host: int, memory: SharedDmaMemory, descriptors: memoryview) -> OnDoorbell:
        on_doorbell = self._nic.attach(now, host, memory, descriptors)
        self.firmware.firmware = self._nic.firmware
        return on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:
        self._nic.detach(now, host, incarnation)
        self.firmware.firmware = self._nic.firmware


def _inner_adapter(adapter: Adapter) -> Adapter:
    """Return the adapter of the firmware above the router: its MTU excludes the envelope."""
    return replace(adapter, mtu=adapter.mtu - _MAX_ENVELOPE_SIZE)


def routed_plug(plain: Plug, routed: Plug) -> Plug:
    """Make a plug that uses `routed` above a router in source-routed networks, and `plain` in other networks. routed: a
    plug whose frames are Myrinet packets of a distinct packet type."""

    def build(adapter: Adapter, nic: Nic) -> Agent:
        if not adapter.routed:
            return plain(adapter, nic)
        router = Router(adapter, nic.send, nic.send_later)
        agent = routed(_inner_adapter(adapter), _InlineActions(router, nic))
        return Agent(RoutedFirmware(router, agent.firmware), agent.host)

    return build


def routed_split_driver(plain: SplitDriver, routed: SplitDriver) -> SplitDriver:
    """Make a split driver from two, as `routed_plug` makes a plug. Both must have the same host library."""

    def make_nic(adapter: Adapter, nic: SharedActions) -> SharedNic:
        return _RoutedSharedNic(adapter, nic, routed.nic) if adapter.routed else plain.nic(adapter, nic)

    return replace(plain, nic=make_nic)
