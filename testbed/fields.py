"""The headers and fields that rules may name and that tell flows apart: the usual ones, and those of our protocols."""

from __future__ import annotations

from functools import cache

from protocols.emp import codec as emp
from testbed.wire.fields import Fields
from testbed.wire.headers import standard_fields


@cache
def known_fields() -> Fields:
    """Always the same ones, whoever carries a link: the n-th frame of a flow is the n-th everywhere."""
    fields = standard_fields()
    fields.register("emp", emp.ETHERTYPE, emp.FIELDS, emp.FLOW)
    return fields
