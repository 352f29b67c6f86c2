"""Open-MX's entry point "openmx" in the group "testbed.protocols"."""

from __future__ import annotations

import importlib
from typing import Final

from protocols.core.firmware import Plug
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.openmx import device
from protocols.openmx.codec import ETHERTYPE
from protocols.openmx.driver_endpoint import DRIVER, LOOKUP
from protocols.openmx.endpoint import EVENT, REQUEST
from protocols.openmx.host import plug
from protocols.openmx.profile import OPENMX_2009, OPENMX_2009_ROUND_ROBIN, OPENMX_2009_SINGLE
from protocols.openmx.settings import Settings
from protocols.openmx.split_driver import split_driver
from protocols.openmx.steering import HASHES


def _by_scapy() -> Plug:
    """Make Open-MX's plug on Scapy's codec. Imported on demand, since importing Scapy is slow."""
    frames = importlib.import_module("protocols.openmx.frames")
    by_scapy = importlib.import_module("protocols.core.scapy_codec")
    return plug(codec=by_scapy.scapy_codec(frames))


PROTOCOL: Final = Protocol(
    plug(),
    ETHERTYPE,
    device,
    _by_scapy,
    profiles=(OPENMX_2009, OPENMX_2009_SINGLE, OPENMX_2009_ROUND_ROBIN),
    split_driver=split_driver(),
    configurable=Configurable(Settings, plug),
    host_work=(DRIVER, LOOKUP, EVENT, REQUEST),
    steering=HASHES,
)
"""Open-MX."""
