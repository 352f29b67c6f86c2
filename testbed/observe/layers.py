"""The Scapy layers of all registered protocols, and a frame as they show it: for decoding in full, which is slow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Final

from scapy.layers import inet, inet6  # noqa: F401  importing them binds what stands above Ethernet
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Raw

from testbed import registry
from testbed.errors import TestbedError
from testbed.wire.fields import ETHERNET_HEADER

_SHOWN: Final = 32  # bytes of what no layer explains


@cache
def frame_modules() -> dict[str, ModuleType]:
    """By protocol; importing them binds their layers to Ethernet. Raises TestbedError where one cannot be imported."""
    found = {}
    for name in registry.offered(registry.FRAMES):
        module = registry.load(registry.FRAMES, name)
        if not isinstance(module, ModuleType):
            raise TestbedError(f"the frames of {name} are no module")
        found[name] = module
    return found


def shown(frame: bytes) -> Iterator[str]:
    """A line for each layer, with all its fields. Raises TestbedError where the layers of a protocol cannot be imported."""
    if len(frame) < ETHERNET_HEADER:
        yield f"no Ethernet frame: {_bytes(frame)}"
        return
    frame_modules()
    layer: Packet = Ether(frame)
    while not isinstance(layer, NoPayload):
        if isinstance(layer, Raw):
            yield f"{layer.name}: {_bytes(bytes(layer))}"
        else:
            fields = [
                f"{field.name} {_printable(field.i2repr(layer, layer.getfieldval(field.name)))}"
                for field in layer.fields_desc
                if field.name in layer.fields
            ]
            yield f"{layer.name}: {', '.join(fields)}"
        layer = layer.payload


def _bytes(rest: bytes) -> str:
    more = " ..." if len(rest) > _SHOWN else ""
    return f"{len(rest)} bytes, {rest[:_SHOWN].hex(' ')}{more}"


def _printable(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text else repr(text)
