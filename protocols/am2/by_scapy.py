"""AM-II's NICs with frames built and parsed by Scapy."""

from __future__ import annotations

import importlib

from protocols.am2.plug import plug
from protocols.core.firmware import Plug

_FRAMES = ("protocols.am2.frames", "protocols.am2.mapper.frames", "protocols.myrinet.frames")


def plug_by_scapy() -> Plug:
    """Make AM-II's plug on Scapy. Imported on demand, since importing Scapy is slow."""
    by_scapy = importlib.import_module("protocols.core.scapy_codec").by_scapy
    made: Plug = by_scapy(plug(), *map(importlib.import_module, _FRAMES))
    return made
