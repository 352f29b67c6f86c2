"""EMP as a split driver: firmware and host library in two processes.

A NIC whose host has died begins a greater incarnation and announces it to the peers that it knew until they show that
they know (`announcements`): so they return to their hosts what was in progress, even if they only wait to receive.

The host is not trusted: a message to itself takes the way of all frames and so does not keep the NIC from other work,
and the number of segments of a message is limited.

While there is no host, the NIC accepts no message in its incarnation: what peers send stays with them until a host
attaches, or until they give up. So the next host continues in the same incarnation and receives what was sent before it
attached.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import HostMemory, Pinning, Reachable
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
"""Limits the memory that an untrusted host can make the NIC use: a segment takes some 200 bytes."""


def split_driver(
    settings: Settings | None = None, codec: Codec = codec, routed_codec: Codec = routed_codec
) -> SplitDriver:
    """Make EMP's split driver; arguments as for `protocols.emp.host.plug`. It has one host: EMP's NIC serves one
    application (section 5)."""
    return routed_split_driver(_split_driver(settings, codec), _split_driver(settings, routed_codec))


def _split_driver(settings: Settings | None, codec: Codec) -> SplitDriver:
    own = settings if settings is not None else Settings()

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, own, codec)

    def host(
        adapter: Adapter, nic: HostActions, memory: Pinning, descriptors: memoryview, _place: HostSlot
    ) -> Endpoint:
        return Endpoint(adapter, nic, memory, Descriptors(own.descriptors, memory=descriptors))

    # One doorbell for each descriptor, and one to take it back.
    return SplitDriver(own.descriptors * SIZE, 2 * own.descriptors, nic, host)


class Nic:
    """Implements `SharedNic`: each host gets new firmware, which succeeds the former."""

    def __init__(self, adapter: Adapter, nic: SharedActions, settings: Settings, codec: Codec) -> None:
        self.adapter = adapter
        self._nic = SingleHostActions(nic)
        self._settings = settings
        self._codec = codec
        self.firmware = self._vacant()

    def attach(self, now: int, host: int, memory: Reachable, descriptors: memoryview) -> OnDoorbell:  # noqa: ARG002
        table = Descriptors(self._settings.descriptors, memory=descriptors, max_segments=_MAX_SEGMENTS)
        former, self.firmware = (
            self.firmware, Firmware(self.adapter, self._nic, memory, table, self._settings, self._codec),
        )  # fmt: skip
        self.firmware.loop_outside()
        self.firmware.succeed(former)
        return self.firmware.on_doorbell

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.with_incarnation(incarnation)
        former, self.firmware = self.firmware, self._vacant()
        self.firmware.succeed(former)

    def _vacant(self) -> Firmware:
        keeps_nothing = copy(self._settings)
        # With held = 0, headers are not kept for later receives. Settings refuse this value to users.
        object.__setattr__(keeps_nothing, "held", 0)
        return Firmware(self.adapter, self._nic, HostMemory(), Descriptors(1), keeps_nothing, self._codec)
