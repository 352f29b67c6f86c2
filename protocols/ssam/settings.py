"""Settings of SSAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_WINDOW: Final = 32
"""Half of the sequence numbers, so that a duplicate is never taken for a new message."""

MAX_BACKOFF: Final = 6
"""A time-out doubles this often at most."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a node. Raises ValueError for invalid ones.

    window: requests to a peer without an answer (section 3.3.1: w; its example has 32). timeout: ns without an answer
    after which a request is sent again, doubled up to 2 ** MAX_BACKOFF times while none comes; the paper has no value,
    this one is ours. give_up: time-outs without an answer
    after which requests are returned; 0: never. input_fifo: cells (section 3.2). connections: to so many peers
    (figure 1: SSAM_MAX_CONN).

    Three are improvements that the paper plans. long_payload: cells of long messages after the first one carry 44 bytes, in
    place of 40 (section 3.4.4). long_window: window during a long message, asked for by a flag in its first cell and granted
    to one sender at a time (section 3.5); 0: as any other. interrupts: handlers run when a cell comes, without a poll
    (section 3.1.1).
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
            raise ValueError(f"window of {self.window}: 1 to {MAX_WINDOW} requests")
        if self.long_window and not self.window < self.long_window <= MAX_WINDOW:
            raise ValueError(
                f"long_window of {self.long_window}: above window ({self.window}), and {MAX_WINDOW} at most; 0: none"
            )
        if self.timeout < 1:
            raise ValueError(f"timeout of {self.timeout} ns: 1 or more")
        if self.give_up < 0:
            raise ValueError(f"give_up of {self.give_up} time-outs: 0 (never) or more")
        if self.input_fifo < 1:
            raise ValueError(f"input_fifo of {self.input_fifo} cells: 1 or more")
        if self.connections < 1:
            raise ValueError(f"connections of {self.connections}: 1 or more")
