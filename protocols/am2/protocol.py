"""AM-II's description for the testbed: the entry point "am2" in the group "testbed.protocols"."""

from __future__ import annotations

from typing import Final

from protocols.am2.codec import ETHERTYPE
from protocols.am2.plug import Configuration, configured_plug, plug, scapy_plug
from protocols.am2.profile import NOW_1998, NOW_1998_CONSISTENT, NOW_1998_UNGUARDED
from protocols.am2.split_driver import split_driver
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.am2 import device

PROTOCOL: Final = Protocol(
    plug(),
    ETHERTYPE,
    device,
    scapy_plug,
    profiles=(NOW_1998, NOW_1998_CONSISTENT, NOW_1998_UNGUARDED),
    framings=("source routes",),
    function_framings=("source routes",),
    split_driver=split_driver(),
    configurable=Configurable(Configuration, configured_plug),
    active_messages=True,
)
