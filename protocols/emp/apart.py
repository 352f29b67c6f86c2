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

from protocols.core.apart import Apart
from protocols.core.firmware import Actions, Adapter, Bell
from protocols.core.firmware import Firmware as AnyFirmware
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
    """As `protocols.emp.host.plug`."""
    own = settings if settings is not None else Settings()
    count = own.descriptors

    def firmware(
        adapter: Adapter, nic: Actions, memory: Reachable, descriptors: memoryview, former: AnyFirmware
    ) -> Firmware:
        made = Firmware(
            adapter, nic, memory, Descriptors(count, memory=descriptors, most_pieces=_MOST_PIECES), own, codec
        )
        made.loop_outside()
        if isinstance(former, Firmware):
            made.succeed(former)
        return made

    def host(adapter: Adapter, nic: Bell, memory: Pinning, descriptors: memoryview) -> Endpoint:
        return Endpoint(adapter, nic, memory, Descriptors(count, memory=descriptors))

    def vacant(adapter: Adapter, nic: Actions, former: AnyFirmware | None) -> Firmware:
        keeps_nothing = copy(own)
        keeps_nothing.held = 0  # no header without a receive, and there will be none
        made = Firmware(adapter, nic, HostMemory(), Descriptors(1), keeps_nothing, codec)
        if isinstance(former, Firmware):
            made.succeed(former)
        return made

    # A doorbell for each descriptor, and one that takes it back.
    return Apart(count * SIZE, 2 * count, firmware, host, vacant)
