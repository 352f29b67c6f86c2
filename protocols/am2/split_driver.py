"""AM-II as a split driver: one NIC, shared by host processes that attach and detach.

Each process has a range of endpoint numbers, and pages, frames and memory that no other process accesses. A doorbell
for an endpoint of another process is counted as invalid and ignored. An entry whose origin is another endpoint is
counted as invalid and returned. When a process ends, its endpoints are destroyed: messages to them are returned to
their senders, and their frames become free. The NIC continues in its incarnation.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import adapt_settings
from protocols.am2.firmware import Firmware
from protocols.am2.host.library import ActiveMessages
from protocols.am2.receiver import DeliveryCallback
from protocols.am2.settings import Settings
from protocols.am2.shared_frames import SharedHostFrames, SharedNicFrames, size_of
from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Allocating, SharedDmaMemory
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SingleHostActions, SplitDriver
from protocols.myrinet.mapper.settings import Settings as MapperSettings

_MAX_OTHER_DOORBELLS: Final = 4
"""Maximum doorbells of one endpoint in flight, in addition to those of its slots."""
_MAPPER_SETTINGS: Final = MapperSettings()
_FOR_ALL_HOSTS: Final = frozenset((layout.LOST, layout.GONE, layout.OWED))
"""Subjects of notifications about another NIC, or its endpoint, which all hosts receive."""
_REGION_SUBJECT_BITS: Final = 2 * layout.SUBJECT_BITS


def split_driver(
    settings: Settings | None = None,
    *,
    mapper_settings: MapperSettings | None = _MAPPER_SETTINGS,
    on_delivery: DeliveryCallback | None = None,
) -> SplitDriver:
    """Make AM-II's split driver; arguments as for `plug`."""
    nic_settings = settings if settings is not None else Settings()

    def make_nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, nic_settings, mapper_settings, on_delivery)

    def make_host(
        adapter: Adapter, nic: HostActions, memory: Allocating, descriptors: memoryview, host_slot: HostSlot
    ) -> ActiveMessages:
        frames = SharedHostFrames(descriptors, memory, nic_settings.frames)
        return ActiveMessages(adapter, nic, frames, adapt_settings(nic_settings, adapter), host_slot)

    return SplitDriver(
        size_of(nic_settings.frames),
        nic_settings.frames * layout.SLOTS + _MAX_OTHER_DOORBELLS * nic_settings.endpoints,
        make_nic,
        make_host,
        nic_settings.max_hosts,
    )


class Nic:
    """A shared NIC. Implements `SharedNic`."""

    def __init__(
        self,
        adapter: Adapter,
        nic: SharedActions,
        settings: Settings,
        mapper_settings: MapperSettings | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        self.adapter: Final = adapter
        self.firmware: Final = Firmware(
            adapter, _HostRouter(nic, settings), None, settings, mapper_settings, on_delivery
        )
        self._frames_by_host: dict[int, SharedNicFrames] = {}

    def attach(self, now: int, host: int, memory: SharedDmaMemory, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        settings = self.firmware.settings
        self._frames_by_host[host] = SharedNicFrames(descriptors, memory, settings.frames, settings.medium)
        self.firmware.attach(host, self._frames_by_host[host])
        return partial(self._on_doorbell, host * settings.numbers_per_host, (host + 1) * settings.numbers_per_host)

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.firmware.detach(now, host)
        self._frames_by_host.pop(host).close()

    def _on_doorbell(self, begin: int, end: int, now: int, index: int) -> None:
        """Handle a doorbell of the host whose endpoints have numbers from begin to end - 1."""
        if not begin <= _endpoint_of(index) < end:
            self.firmware.counters.invalid += 1
            return
        self.firmware.on_doorbell(now, index)


class _HostRouter(SingleHostActions):
    """`FirmwareActions` that pass each notification about an endpoint to the endpoint's host."""

    __slots__ = ("_hosts", "_numbers_per_host")

    def __init__(self, nic: SharedActions, settings: Settings) -> None:
        super().__init__(nic)
        self._hosts = settings.max_hosts
        self._numbers_per_host = settings.numbers_per_host

    def post_completion(self, index: int) -> None:
        if index & layout.SUBJECT_MASK not in _FOR_ALL_HOSTS:
            self._nic.post_completion(_endpoint_of(index) // self._numbers_per_host, index)
            return
        for host in range(self._hosts):
            self._nic.post_completion(host, index)

    def interrupt(self, index: int) -> None:
        self.post_completion(index)


def _endpoint_of(index: int) -> int:
    """Return the number of the endpoint that a doorbell or notification is about."""
    subject = index & layout.SUBJECT_MASK
    if subject in (layout.LOST_REPLY, layout.AWAITED):
        return index >> layout.SUBJECT_BITS & (1 << layout.ENDPOINT_BITS) - 1
    return index >> (_REGION_SUBJECT_BITS if subject in layout.REGION_EVENTS else layout.SUBJECT_BITS)
