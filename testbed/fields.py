"""The headers and fields that rules may name and that tell flows apart: the usual ones, and those of our protocols."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from testbed import registry
from testbed.errors import TestbedError
from testbed.wire.fields import Fields
from testbed.wire.headers import standard_fields


@cache
def known_fields() -> Fields:
    """Always the same ones, whoever carries a link: the n-th frame of a flow is the n-th everywhere.

    A package names its codec, a module with ETHERTYPE, FIELDS and FLOW, as an entry point of the group "testbed.fields"; its
    ROUTED says whether its header stands behind a source route, BEGINS with which bytes it begins, where others have the
    same EtherType, and NAMES what values of its fields are called.
    One that cannot be imported, or clashes with another one, keeps no cluster from coming up: rules cannot name it.
    """
    fields = standard_fields()
    for name in registry.offered(registry.FIELDS):
        with suppress(TestbedError, AttributeError, ValueError):
            codec: Any = registry.load(registry.FIELDS, name)
            register(fields, name, codec)
    return fields


def register(fields: Fields, name: str, codec: Any) -> None:
    """Add those of a codec, under that name. Raises AttributeError for a module that is none, ValueError for what cannot
    be."""
    fields.register(
        name,
        codec.ETHERTYPE,
        codec.FIELDS,
        codec.FLOW,
        routed=getattr(codec, "ROUTED", False),
        begins=getattr(codec, "BEGINS", b""),
        names=getattr(codec, "NAMES", {}),
    )
