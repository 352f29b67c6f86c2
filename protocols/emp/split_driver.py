"""EMP as a split driver: firmware and host library in two processes.

When a host detaches or dies, its NIC begins a greater incarnation, and announces that to its peers until they use it
(`protocols.core.announcements`). So a peer fails the transfers that were in progress, even if the program of the peer
only waits to receive.

The host is not trusted. Its messages to itself are looped back by the environment's NIC, not in the firmware, where they
could keep the NIC from other work. The number of segments of a message is limited.

While there is no host, the NIC accepts no messages: peers resend their messages until a host attaches, or give them up. So
the next host continues in this incarnation, and receives messages that were sent before it attached.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import DmaMemory, HostMemory, Pinning
from protocols.core.split_memory import HostSlot, OnDoorbell, SharedActions, SingleHostActions, SplitDriver
from protocols.emp import codec
from protocols.emp.card import Codec
from protocols.emp.descriptors import SIZE, Descriptors
from protocols.emp.firmware import Firmware
from protocols.emp.host import Endpoint
from protocols.emp.myrinet import codec as routed_codec
from protocols.emp.settings import Settings
from protocols.myrinet.routed_nic import routed_split_driver

_MAX_SEGMENTS: Final = 2_048
"""Maximum segments of a message. It limits the memory that an untrusted host can make the NIC use: a segment takes some
200 bytes."""


def split_driver(
    settings: Settings | None = None, codec: Codec = codec, routed_codec: Codec = routed_codec
) -> SplitDriver:
    """Make EMP's split driver; arguments as for `protocols.emp.host.plug`. It serves one host at a time: support for
    several applications on a node is the paper's future work (section 6)."""
    return routed_split_driver(_split_driver(settings, codec), _split_driver(settings, routed_codec))


def _split_driver(settings: Settings | None, codec: Codec) -> SplitDriver:
    nic_settings = settings if settings is not None else Settings()
    count = nic_settings.descriptors

    def make_nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, nic_settings, codec)

    def make_host(
        adapter: Adapter, nic: HostActions, memory: Pinning, descriptors: memoryview, _host_slot: HostSlot
    ) -> Endpoint:
        return Endpoint(adapter, nic, memory, Descriptors(count, memory=descriptors))

    # Each descriptor has a doorbell that passes it, and one that cancels its receive. Reports of crashed peers are few.
    return SplitDriver(count * SIZE, 2 * count, make_nic, make_host)


class Nic:
    """A shared NIC, with new firmware for each host. Implements `SharedNic`."""

    def __init__(self, adapter: Adapter, nic: SharedActions, settings: Settings, codec: Codec) -> None:
        self.adapter = adapter
        self._nic = SingleHostActions(nic)
        self._settings = settings
        self._codec = codec
        self.firmware = self._hostless_firmware()

    def attach(self, now: int, host: int, memory: DmaMemory, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        table = Descriptors(self._settings.descriptors, memory=descriptors, max_segments=_MAX_SEGMENTS)
        former, self.firmware = (
            self.firmware, Firmware(self.adapter, self._nic, memory, table, self._settings, self._codec),
        )  # fmt: skip
        self.firmware.loop_through_nic()
        self.firmware.take_over(former)
        return self.firmware.on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.with_incarnation(incarnation)
        former, self.firmware = self.firmware, self._hostless_firmware()
        self.firmware.take_over(former)

    def _hostless_firmware(self) -> Firmware:
        settings = copy(self._settings)
        # Without a host, no header is kept for a later receive. `Settings` does not allow users to set held = 0.
        object.__setattr__(settings, "held", 0)
        return Firmware(self.adapter, self._nic, HostMemory(), Descriptors(1), settings, self._codec)
