"""VIA's entry point "via" in the group "testbed.protocols"."""

from __future__ import annotations

import importlib
from typing import Final

from protocols.core.firmware import Plug
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.via import device
from protocols.mpi.via.endpoint import MPI
from protocols.via.card import AGENT, REGISTER
from protocols.via.codec import ETHERTYPE
from protocols.via.host import plug
from protocols.via.profile import LAM_VIA_2000
from protocols.via.settings import Settings
from protocols.via.split_driver import split_driver


def _by_scapy() -> Plug:
    """Make VIA's plug on Scapy's codec. Imported on demand, since importing Scapy is slow."""
    frames = importlib.import_module("protocols.via.frames")
    by_scapy = importlib.import_module("protocols.core.scapy_codec")
    return plug(codec=by_scapy.scapy_codec(frames))


PROTOCOL: Final = Protocol(
    plug(),
    ETHERTYPE,
    device,
    _by_scapy,
    split_driver=split_driver(),
    configurable=Configurable(Settings, plug),
    profiles=(LAM_VIA_2000,),
    host_work=(AGENT, REGISTER, MPI),
)
