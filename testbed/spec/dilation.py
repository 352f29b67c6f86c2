"""Dilation of a cluster: its links take k times as long, for a dilated run.

Delays are multiplied and rates divided; numbers of frames or bytes (losses, queues, patterns) do not change. A queue
derived from rate and delay does not change either, since their product is constant.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from testbed.errors import UnsupportedError
from testbed.spec.layout import Impairment, Layout, Link
from testbed.spec.units import UnitError, parse_duration

_QUANTITY: Final = re.compile(r"(?<![\w.:])[\d.]+(?:[eE][+-]?\d+)?[a-zA-Zµμ]+")


def slow_layout(layout: Layout, factor: int) -> Layout:
    """Slow all links by a factor of 1 or more. Raises UnsupportedError for links whose delays or rates are in files, or
    whose rate would be below 1 bit/s."""
    if factor == 1:
        return layout
    return replace(layout, links=tuple(_link(link, factor) for link in layout.links), slowed=layout.slowed * factor)


def slow_rule(text: str, factor: int) -> str:
    """Slow the delays and times of a fault rule."""

    def slow(match: re.Match[str]) -> str:
        try:
            return f"{parse_duration(match[0]) * factor}ns"
        except UnitError:  # not a duration, such as 0x88b6
            return match[0]

    return _QUANTITY.sub(slow, text)


def slow_rate(owner: str, rate: int, factor: int) -> int:
    """Slow a rate, bit/s. owner: for the UnsupportedError that is raised if the rate would be below 1 bit/s."""
    if rate < factor:
        raise UnsupportedError(f"{owner}: a rate of {rate} bit/s, {factor} times slower, is below 1 bit/s")
    return rate // factor


def _link(link: Link, factor: int) -> Link:
    sides = []
    for side in (link.forward, link.backward):
        if side.jitter_file or side.rate_trace:
            raise UnsupportedError(f"link {link.name}: a jitter or a rate that is in a file cannot be slowed")
        sides.append(_impairment(side, factor, f"link {link.name}"))
    return replace(link, forward=sides[0], backward=sides[1])


def _impairment(side: Impairment, factor: int, owner: str) -> Impairment:
    return replace(
        side,
        delay=side.delay * factor,
        jitter=side.jitter * factor,
        rate=slow_rate(owner, side.rate, factor) if side.rate else 0,
        rules=tuple(slow_rule(rule, factor) for rule in side.rules),
    )
