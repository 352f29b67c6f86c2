"""Original errors of firmware and host libraries, for cases that check their messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.errors import FirmwareError


@contextmanager
def unwrapped() -> Iterator[None]:
    """Context manager: raise the cause of a FirmwareError in its place."""
    try:
        yield
    except FirmwareError as error:
        raise error.__cause__ or error from None
