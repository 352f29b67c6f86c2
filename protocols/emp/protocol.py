"""EMP's entry point "emp" in the group "testbed.protocols"."""

from __future__ import annotations

import importlib
from typing import Final

from protocols.core.firmware import Plug
from protocols.core.protocol import Configurable, Protocol
from protocols.emp.codec import ETHERTYPE
from protocols.emp.host import plug
from protocols.emp.profile import EMP_2001, EMP_2002
from protocols.emp.settings import Settings
from protocols.emp.split_driver import split_driver
from protocols.mpi.emp import device


def _by_scapy() -> Plug:
    """Make EMP's plug on Scapy's codec. Imported on demand, since importing Scapy is slow."""
    frames = importlib.import_module("protocols.emp.frames")
    by_scapy = importlib.import_module("protocols.core.scapy_codec")
    return plug(codec=by_scapy.scapy_codec(frames))


PROTOCOL: Final = Protocol(
    plug(),
    ETHERTYPE,
    device,
    _by_scapy,
    profiles=(EMP_2001, EMP_2002),
    split_driver=split_driver(),
    configurable=Configurable(Settings, plug),
)
