"""Settings of SSAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_WINDOW: Final = 32
"""Maximum window: half of the sequence numbers, so that a duplicate is never mistaken for a new message."""

MAX_BACKOFF: Final = 6
"""Maximum number of doublings of a time-out."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a node. Raises ValueError for invalid ones.

    window: maximum unanswered requests to a peer (w in section 3.3.1, 32 in its example). timeout: nanoseconds without
    an answer after which a request is resent, doubled up to MAX_BACKOFF times (ours: the paper has no value). give_up:
    number of consecutive time-outs after which requests are returned (ours); 0: never. input_fifo: capacity of the
    input FIFO in cells (section 3.2). connections: maximum number of peers of a process (figure 1: SSAM_MAX_CONN).

    Three settings are improvements that the paper proposes. long_payload: cells of long messages after the first cell
    carry 44 bytes instead of 40 (section 3.4.4). long_window: window during a long message, requested by a flag in the
    message's first cell and granted to one sender at a time (section 3.5); 0: no larger window. interrupts: handlers
    run when a cell arrives, without a poll (section 3.1.1).
    """

    window: int = 32
    timeout: int = 5_000_000
    give_up: int = 100
    input_fifo: int = 292
    connections: int = 32
    long_payload: bool = False
    long_window: int = 0
    interrupts: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.window <= MAX_WINDOW:
            raise ValueError(f"window = {self.window}: 1 to {MAX_WINDOW}")
        if self.long_window and not self.window < self.long_window <= MAX_WINDOW:
            raise ValueError(
                f"long_window = {self.long_window}: above window ({self.window}) and at most {MAX_WINDOW}, or 0 (none)"
            )
        if self.timeout < 1:
            raise ValueError(f"timeout = {self.timeout}: 1 ns or more")
        if self.give_up < 0:
            raise ValueError(f"give_up = {self.give_up}: 0 (never) or more")
        if self.input_fifo < 1:
            raise ValueError(f"input_fifo = {self.input_fifo}: 1 or more")
        if self.connections < 1:
            raise ValueError(f"connections = {self.connections}: 1 or more")
