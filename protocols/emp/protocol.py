"""EMP's description for the testbed: the entry point "emp" in the group "testbed.protocols"."""

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


def _scapy_plug() -> Plug:
    """Make EMP's plug with codecs that use Scapy, which is imported here, since its import is slow."""
    frames, routed_frames = map(importlib.import_module, ("protocols.emp.frames", "protocols.emp.myrinet.frames"))
    make_codec = importlib.import_module("protocols.core.scapy_codec").scapy_codec
    return plug(codec=make_codec(frames), routed_codec=make_codec(routed_frames))


PROTOCOL: Final = Protocol(
    plug(),
    ETHERTYPE,
    device,
    _scapy_plug,
    profiles=(EMP_2001, EMP_2002),
    framings=(FRAMING,),
    function_framings=(FRAMING,),
    ethertypes={FRAMING: routed_codec.ETHERTYPE},
    split_driver=split_driver(),
    configurable=Configurable(Settings, plug),
)
