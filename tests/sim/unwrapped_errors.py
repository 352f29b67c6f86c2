"""Errors from within a NIC, for cases that check the messages of firmware and libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.errors import FirmwareError


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise an error of firmware or host library as it was raised there."""
    try:
        yield
    except FirmwareError as error:
        raise error.__cause__ or error from None
