"""EMP's entry point "emp" in the group "testbed.protocols"."""

from __future__ import annotations

import importlib
from typing import Final

from protocols.core.firmware import Plug
from protocols.core.protocol import Configurable, Protocol
from protocols.emp.codec import ETHERTYPE
from protocols.emp.host import plug
from protocols.emp.myrinet import codec as routed_codec
from protocols.emp.profile import EMP_2001, EMP_2002
from protocols.emp.settings import Settings
from protocols.emp.split_driver import split_driver
from protocols.mpi.emp import device
from protocols.myrinet.routed_nic import FRAMING


def _by_scapy() -> Plug:
    """Make EMP's plug on Scapy's codec. Imported on demand, since importing Scapy is slow."""
    frames, routed = map(importlib.import_module, ("protocols.emp.frames", "protocols.emp.myrinet.frames"))
    by_scapy = importlib.import_module("protocols.core.scapy_codec")
    return plug(codec=by_scapy.scapy_codec(frames), routed_codec=by_scapy.scapy_codec(routed))


PROTOCOL: Final = Protocol(
    plug(),
    ETHERTYPE,
    device,
    _by_scapy,
    profiles=(EMP_2001, EMP_2002),
    framings=(FRAMING,),
    function_framings=(FRAMING,),
    ethertypes={FRAMING: routed_codec.ETHERTYPE},
    split_driver=split_driver(),
    configurable=Configurable(Settings, plug),
)
