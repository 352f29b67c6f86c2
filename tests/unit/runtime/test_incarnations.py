"""Incarnations of a NIC from the time of its start."""

from __future__ import annotations

import time

import pytest

from protocols.core.firmware import FIRST
from testbed.runtime.nodes.veth_port import incarnation

MILLISECOND = 1_000_000
PERIOD = 2**32 - 2
"""Milliseconds after which incarnations repeat."""


@pytest.mark.parametrize("uptime", [0, 1, 2, 1_000, PERIOD - 2, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD])
def test_a_later_start_is_a_later_incarnation_and_never_a_reserved_number(
    uptime: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([uptime * MILLISECOND, (uptime + 1) * MILLISECOND])
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: next(clock))
    earlier, later = incarnation(), incarnation()
    assert 0 < (later - earlier) % 2**32 < 2**31
    assert min(earlier, later) > FIRST
    assert max(earlier, later) < 2**32
