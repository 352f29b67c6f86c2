"""Dilation of a cluster: its links become slower by a factor, for a dilated run.

Delays are multiplied and rates divided; shares of frames, and numbers of frames or bytes (losses, queues, patterns) do not
change. A queue derived from rate and delay does not change either, since their product is constant.
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
    links = tuple(_slow_link(link, factor) for link in layout.links)
    return replace(layout, links=links, slowed=layout.slowed * factor)


def slow_rule(text: str, factor: int) -> str:
    """Multiply the durations in a fault rule by a factor."""

    def slow(match: re.Match[str]) -> str:
        try:
            return f"{parse_duration(match[0]) * factor}ns"
        except UnitError:  # not a duration, such as 0x88b6
            return match[0]

    return _QUANTITY.sub(slow, text)


def slow_rate(owner: str, rate: int, factor: int) -> int:
    """Divide a rate in bit/s. Raises UnsupportedError, which names the owner, if the result is below 1 bit/s."""
    if rate < factor:
        raise UnsupportedError(f"{owner}: a rate of {rate} bit/s, {factor} times slower, is below 1 bit/s")
    return rate // factor


def _slow_link(link: Link, factor: int) -> Link:
    owner = f"link {link.name}"
    return replace(
        link,
        forward=_slow_impairment(link.forward, factor, owner),
        backward=_slow_impairment(link.backward, factor, owner),
    )


def _slow_impairment(impairment: Impairment, factor: int, owner: str) -> Impairment:
    if impairment.jitter_file or impairment.rate_trace:
        raise UnsupportedError(f"{owner}: a jitter or a rate that is in a file cannot be slowed")
    return replace(
        impairment,
        delay=impairment.delay * factor,
        jitter=impairment.jitter * factor,
        rate=slow_rate(owner, impairment.rate, factor) if impairment.rate else 0,
        rules=tuple(slow_rule(rule, factor) for rule in impairment.rules),
    )
