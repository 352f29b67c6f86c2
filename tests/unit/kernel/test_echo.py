"""Echo requests to an address of this machine."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from testbed.kernel.echo import round_trips

pytestmark = pytest.mark.requires("root")

_MAX_SELECTABLE = 1024
"""Number of descriptors that select(2) can wait for (FD_SETSIZE)."""


@contextlib.contextmanager
def descriptors_in_use(count: int) -> Iterator[None]:
    """Open descriptors until all below `count` are in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = count + 64
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(soft, enough), hard if hard == resource.RLIM_INFINITY else max(hard, enough))
        )
        descriptor = -1
        while descriptor < count:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
        yield


def test_each_request_is_answered_and_has_a_round_trip_time() -> None:
    trips = round_trips("127.0.0.1", "127.0.0.1", 3, 10.0)
    assert len(trips) == 3
    assert all(0 < trip < 10_000_000_000 for trip in trips)


def test_a_reply_is_received_on_a_descriptor_that_select_cannot_wait_for() -> None:
    with descriptors_in_use(_MAX_SELECTABLE):
        assert len(round_trips("127.0.0.1", "127.0.0.1", 2, 10.0)) == 2
