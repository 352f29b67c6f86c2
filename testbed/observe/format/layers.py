"""Full dissection of frames by the Scapy layers of all registered protocols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType

from scapy.layers import inet, inet6  # noqa: F401  importing them binds the layers above Ethernet
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Raw

from testbed import registry
from testbed.errors import TestbedError
from testbed.fates.header_fields import ETHERNET_HEADER
from testbed.fields import known_fields
from testbed.observe.format.fixed_layers import FixedLayers, UnfitError, format_bytes, printable


@cache
def frame_modules() -> dict[str, ModuleType]:
    """Import the frame modules of all protocols, by name, which binds their layers to Ethernet.

    Raises TestbedError if a module cannot be imported, or if two packages clash: Scapy would dissect the frames of one
    package by the layers of the other.
    """
    known_fields()
    modules = {}
    for name in registry.offered(registry.FRAMES):
        module = registry.load(registry.FRAMES, name)
        if not isinstance(module, ModuleType):
            raise TestbedError(f"the frames of protocol {name} must be a module, got {type(module).__name__}")
        modules[name] = module
    return modules


def format_layers(frame: bytes) -> Iterable[str]:
    """Format a frame with all fields, one line for each layer. Raises TestbedError if a protocol's layers cannot be
    imported."""
    try:
        return _fixed().format(frame)
    except UnfitError:
        return format_by_scapy(frame)


def format_by_scapy(frame: bytes) -> Iterator[str]:
    """Format any frame by Scapy's dissection, which is slow."""
    if len(frame) < ETHERNET_HEADER:
        yield f"not an Ethernet frame: {format_bytes(frame)}"
        return
    frame_modules()
    layer: Packet = Ether(frame)
    while not isinstance(layer, NoPayload):
        if isinstance(layer, Raw):
            yield f"{layer.name}: {format_bytes(bytes(layer.load))}"
        else:
            fields = [
                f"{field.name} {printable(field.i2repr(layer, layer.getfieldval(field.name)))}"
                for field in layer.fields_desc
                if field.name in layer.fields
            ]
            yield f"{layer.name}: {', '.join(fields)}"
        layer = layer.payload


@cache
def _fixed() -> FixedLayers:
    return FixedLayers({module.__name__ for module in frame_modules().values()})
