"""Settings of the firmware: `testbed run ... --firmware resend=1ms`."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.workloads.workload_settings import Duration


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the firmware. resend: time without a receipt after which a card is resent."""

    resend: Duration = 5_000_000  # ns

    def __post_init__(self) -> None:
        if self.resend < 1:
            raise ValueError(f"resend must be 1 ns or more, got {self.resend}")
