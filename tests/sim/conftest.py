"""Fixtures of simulation tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where a background shell makes the tests ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
