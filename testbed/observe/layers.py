"""The Scapy layers of all registered protocols, and a frame as they show it: for decoding in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType

from scapy.layers import inet, inet6  # noqa: F401  importing them binds what stands above Ethernet
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Raw

from testbed import registry
from testbed.errors import TestbedError
from testbed.observe.fixed_layers import FixedLayers, UnfitError, as_bytes, printable
from testbed.wire.fields import ETHERNET_HEADER


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


def shown(frame: bytes) -> Iterable[str]:
    """A line for each layer, with all its fields. Raises TestbedError where the layers of a protocol cannot be imported."""
    try:
        return _fixed().shown(frame)
    except UnfitError:
        return shown_by_scapy(frame)


def shown_by_scapy(frame: bytes) -> Iterator[str]:
    """The same, of any frame, and slowly."""
    if len(frame) < ETHERNET_HEADER:
        yield f"no Ethernet frame: {as_bytes(frame)}"
        return
    frame_modules()
    layer: Packet = Ether(frame)
    while not isinstance(layer, NoPayload):
        if isinstance(layer, Raw):
            yield f"{layer.name}: {as_bytes(bytes(layer.load))}"
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
