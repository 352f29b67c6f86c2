"""The dissector of all protocols that are registered."""

from __future__ import annotations

from testbed.errors import TestbedError
from testbed.observe.dissector.headers import Protocol, protocol
from testbed.observe.dissector.lua import dissector
from testbed.observe.layers import frame_modules


def made() -> tuple[str, list[str]]:
    """Its text, and a sentence for each protocol that is not in it. Raises TestbedError where none is."""
    protocols: list[Protocol] = []
    lacking: list[str] = []
    for name, module in frame_modules().items():
        try:
            protocols.append(protocol(name, module))
        except TypeError as error:
            lacking.append(f"{name} is not in it: {error}")
    if not protocols:
        raise TestbedError("\n".join(["there is no protocol to make a dissector of", *lacking]))
    return dissector(protocols), lacking
