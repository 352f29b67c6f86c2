"""Start times distinguish a NIC's incarnations where these are not counted."""

from __future__ import annotations

import time

import pytest

from protocols.core.firmware import FIRST
from testbed.runtime.incarnations import incarnation

MILLISECOND = 1_000_000
ROUND = 2**32 - 2
"""Milliseconds, after which they begin again."""


@pytest.mark.parametrize("uptime", [0, 1, 2, 1_000, ROUND - 2, ROUND - 1, ROUND, ROUND + 1, 2 * ROUND])
def test_a_later_time_is_a_later_incarnation_and_none_looks_counted(
    uptime: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([uptime * MILLISECOND, (uptime + 1) * MILLISECOND])
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: next(clock))
    earlier, later = incarnation(), incarnation()
    assert 0 < (later - earlier) % 2**32 < 2**31
    assert min(earlier, later) > FIRST
    assert max(earlier, later) < 2**32
