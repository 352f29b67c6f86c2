"""EMP with its firmware and its host library in two processes.

A NIC whose host has died begins a greater incarnation, and says so at once to the peers that it knew, and again until they
know (`announcements`): so they return to their hosts what was under way, even where they only wait to receive.

The host is not trusted: a message to itself does not keep the NIC from others, since it goes the way of all frames; and in
how many pieces a message may lie is limited.

As long as there is no host, this incarnation takes no message: what peers send stays with them, until there is one, or until
they give up. So the next host goes on in the same incarnation, and is given what was sent to it before it came.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from protocols.core.apart import Apart, OneHost, Place, Ring, SharedActions
from protocols.core.firmware import Adapter, Bell
from protocols.core.memory import HostMemory, Pinning, Reachable
from protocols.emp import codec
from protocols.emp.card import Codec
from protocols.emp.descriptors import SIZE, Descriptors
from protocols.emp.firmware import Firmware
from protocols.emp.host import Endpoint
from protocols.emp.settings import Settings

_MOST_PIECES: Final = 2_048
"""A host that is not trusted could have the NIC keep millions of them, at some 200 bytes each."""


def apart(settings: Settings | None = None, codec: Codec = codec) -> Apart:
    """As `protocols.emp.host.plug`. One host: EMP's NIC serves one application (section 5)."""
    own = settings if settings is not None else Settings()

    def nic(adapter: Adapter, nic: SharedActions) -> Nic:
        return Nic(adapter, nic, own, codec)

    def host(adapter: Adapter, nic: Bell, memory: Pinning, descriptors: memoryview, _place: Place) -> Endpoint:
        return Endpoint(adapter, nic, memory, Descriptors(own.descriptors, memory=descriptors))

    # A doorbell for each descriptor, and one that takes it back.
    return Apart(own.descriptors * SIZE, 2 * own.descriptors, nic, host)


class Nic:
    """Implements `SharedNic`: for each host other firmware, in the place of the former."""

    def __init__(self, adapter: Adapter, nic: SharedActions, settings: Settings, codec: Codec) -> None:
        self.adapter = adapter
        self._nic = OneHost(nic)
        self._settings = settings
        self._codec = codec
        self.firmware = self._vacant()

    def attach(self, now: int, host: int, memory: Reachable, descriptors: memoryview) -> Ring:  # noqa: ARG002
        table = Descriptors(self._settings.descriptors, memory=descriptors, most_pieces=_MOST_PIECES)
        former, self.firmware = (
            self.firmware, Firmware(self.adapter, self._nic, memory, table, self._settings, self._codec),
        )  # fmt: skip
        self.firmware.loop_outside()
        self.firmware.succeed(former)
        return self.firmware.ring

    def detach(self, now: int, host: int, incarnation: int) -> None:  # noqa: ARG002
        self.adapter = self.adapter.of_incarnation(incarnation)
        former, self.firmware = self.firmware, self._vacant()
        self.firmware.succeed(former)

    def _vacant(self) -> Firmware:
        keeps_nothing = copy(self._settings)
        # No header without a receive, and there will be none: not for anybody to choose, so the settings refuse it.
        object.__setattr__(keeps_nothing, "held", 0)
        return Firmware(self.adapter, self._nic, HostMemory(), Descriptors(1), keeps_nothing, self._codec)
