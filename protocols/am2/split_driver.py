"""AM-II as a split driver: one NIC, shared by host processes that attach and detach.

Each process has endpoints of its own, identified by their numbers, and pages, frames and memory that no other process
accesses. A process rings for its own endpoints only; a doorbell for another's, or an entry that names another's as its
origin, is counted as invalid and ignored. When a process ends, so do its endpoints: messages to them are returned to
their senders, and their frames are free. The NIC continues in the same incarnation: its peers notice nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from protocols.am2 import page as layout
from protocols.am2.card import adapted
from protocols.am2.firmware import Firmware
from protocols.am2.host.library import ActiveMessages
from protocols.am2.receiver import Witness
from protocols.am2.settings import Settings
from protocols.am2.shared_frames import OwnFrames, SeenFrames, size_of
from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Allocating, SharedReachable
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SplitDriver
from protocols.myrinet.mapper.settings import Settings as MapperSettings

_OTHER_DOORBELLS: Final = 4
"""Maximum doorbells for one endpoint that are in flight beside those of its slots: changes and requests of residency."""
_MAPPING: Final = MapperSettings()
_REGIONS: Final = 2 * layout.SUBJECTS


def split_driver(
    settings: Settings | None = None, *, mapping: MapperSettings | None = _MAPPING, witness: Witness | None = None
) -> SplitDriver:
    """Make AM-II's split driver; arguments as for `plug`."""
    own = settings if settings is not None else Settings()

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, own, mapping, witness)

    def host(
        adapter: Adapter, bell: HostActions, memory: Allocating, descriptors: memoryview, place: HostSlot
    ) -> ActiveMessages:
        frames = OwnFrames(descriptors, memory, own.frames)
        return ActiveMessages(adapter, bell, frames, adapted(own, adapter), place)

    return SplitDriver(
        size_of(own.frames), own.frames * layout.SLOTS + _OTHER_DOORBELLS * own.endpoints, nic, host, own.hosts
    )


class Nic:
    """Implements `SharedNic`."""

    def __init__(
        self,
        adapter: Adapter,
        nic: SharedActions,
        settings: Settings,
        mapping: MapperSettings | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.adapter: Final = adapter
        self.firmware: Final = Firmware(adapter, _HostRouter(nic, settings), None, settings, mapping, witness)
        self._seen: dict[int, SeenFrames] = {}

    def attach(self, now: int, host: int, memory: SharedReachable, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        settings = self.firmware.settings
        self._seen[host] = SeenFrames(descriptors, memory, settings.frames, settings.medium)
        self.firmware.attach(host, self._seen[host])
        return partial(self._ring, host * settings.numbers, (host + 1) * settings.numbers)

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.firmware.detach(now, host)
        self._seen.pop(host).close()

    def _ring(self, begin: int, end: int, now: int, index: int) -> None:
        """Handle a doorbell of the host whose endpoints have numbers from begin to end - 1."""
        if not begin <= _endpoint(index) < end:
            self.firmware.counters.invalid += 1
            return
        self.firmware.on_doorbell(now, index)


class _HostRouter:
    """The firmware's `FirmwareActions`: passes each notification about an endpoint to the endpoint's host."""

    __slots__ = ("_hosts", "_nic", "_numbers", "dma_read", "dma_write", "interrupt", "send", "send_later", "when_sent")

    def __init__(self, nic: SharedActions, settings: Settings) -> None:
        self._nic = nic
        self._hosts = settings.hosts
        self._numbers = settings.numbers
        self.dma_read = nic.dma_read
        self.send = nic.send
        self.when_sent = nic.when_sent
        self.send_later = nic.send_later
        self.dma_write = nic.dma_write
        self.interrupt = self.post_completion

    def post_completion(self, index: int) -> None:
        if index & layout.SUBJECT not in (layout.RESTARTED, layout.GONE):
            self._nic.post_completion(_endpoint(index) // self._numbers, index)
            return
        for host in range(self._hosts):
            self._nic.post_completion(host, index)


def _endpoint(index: int) -> int:
    """Return the number of the endpoint that a doorbell or notification is about."""
    return index >> (_REGIONS if index & layout.SUBJECT in layout.OF_REGIONS else layout.SUBJECTS)
