"""AM-II's NICs with frames that Scapy makes and reads."""

from __future__ import annotations

import importlib

from protocols.am2.plug import plug
from protocols.core.firmware import Plug

_FRAMES = ("protocols.am2.frames", "protocols.am2.mapper.frames", "protocols.myrinet.frames")


def plug_by_scapy() -> Plug:
    """Scapy takes a while to import: by name, when somebody asks."""
    by_scapy = importlib.import_module("protocols.core.scapy_codec").by_scapy
    made: Plug = by_scapy(plug(), *map(importlib.import_module, _FRAMES))
    return made
