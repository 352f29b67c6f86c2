"""Table of thresholds: the deviations above which a finding is degraded or invalid.

Grades are determined here, except of findings that are always invalid, such as the loss of a machine, and of networks
between machines. A limit is an absolute value or a share of the configured value, whichever is greater. The slow-machine
factor multiplies limits that a machine can exceed merely because it is slow. For losses inside the emulator the limit is 0
on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from testbed.controller.verdict.verdicts import Grade

_US: Final = 1_000
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of one kind of finding. A deviation is invalid above `invalid`, otherwise degraded above `degraded`.
    relative_*: limits as shares of the configured value. is_scaled: whether the slow-machine factor applies. meaning:
    definition of the deviation."""

    meaning: str
    unit: str
    degraded: float
    invalid: float
    relative_degraded: float = 0.0
    relative_invalid: float = 0.0
    is_scaled: bool = False

    def grade(self, deviation: float, configured: float = 0.0, slow: float = 1.0) -> Grade:
        factor = slow if self.is_scaled else 1.0
        if deviation > max(self.invalid, self.relative_invalid * configured) * factor:
            return Grade.INVALID
        if deviation > max(self.degraded, self.relative_degraded * configured) * factor:
            return Grade.DEGRADED
        return Grade.TRUSTED


_NEVER: Final = float("inf")

LIMITS: Final[Mapping[str, Limit]] = MappingProxyType(
    {
        # A direction, by probes. Deviations of delays are counted beyond the sampling error.
        "delay p50": Limit("deviation of the median delay", "ns", 500 * _US, 5 * _MS, 0.05, 0.25, True),
        "delay p99": Limit("deviation of the 99th percentile of the delay", "ns", 2 * _MS, 20 * _MS, 0.1, 0.5, True),
        "delay min": Limit("how much the minimum delay is too short", "ns", 50 * _US, 1 * _MS, 0.01, 0.1),
        "jitter": Limit("deviation of the spread", "ns", 50 * _US, 200 * _US, 0.1, 0.3, True),
        "jitter, none configured": Limit("spread, although no jitter is configured", "ns", 500 * _US, 5 * _MS, 0, 0, True),
        "jitter distribution": Limit("distance from the configured distribution", "share", 0.0, 0.1),
        "rate": Limit("deviation of the rate", "bit/s", 0.0, 0.0, 0.05, 0.2, True),
        "loss": Limit("distance of the configured share from the interval", "share", 0.0, 0.0),
        "corrupt": Limit("distance of the configured share from the interval", "share", 0.0, 0.0),
        "duplicate": Limit("distance of the configured share from the interval", "share", 0.0, 0.0),
        "reorder": Limit("distance of the configured share from the interval", "share", 0.0, 0.0),
        "order": Limit("frames overtaken on an ordered link", "share", 0.0, 0.001),
        "approximation": Limit("outside the interval, on an approximate datapath", "share", 0.0, _NEVER),
        "down": Limit("frames that passed a link that is down", "frames", 0.0, 0.0),
        # Inside the emulator.
        "relay lateness p99": Limit("how late the relay sent frames", "ns", 2 * _MS, 20 * _MS, 0.1, 0.5, True),
        "relay lost": Limit("overrun, oversized, not sent: lost without a configured cause", "frames", 0.0, 0.0),
        "relay finished": Limit("frames with checksums to be computed, and GSO frames", "frames", _NEVER, _NEVER),
        "relay at a down end": Limit("frames for a free end that was down", "frames", 0.0, _NEVER),
        "relay at an end taken down": Limit("frames for a free end that was taken down", "frames", _NEVER, _NEVER),
        "relay gap": Limit("time without a relay", "ns", 0.0, 0.0),
        "supervisor gap": Limit("time without the supervisor of relay and agents", "ns", 0.0, 0.0),
        "machine lost": Limit("a machine of the run was lost", "ns", 0.0, 0.0),
        "machine unreachable": Limit("time for which a machine did not answer another one", "ns", 0.0, 0.0),
        "node parent gap": Limit("the parent of node processes has died", "ns", 0.0, 0.0),
        "cluster ended": Limit("the namespace holder has died", "ns", 0.0, 0.0),
        "classifier inexact": Limit("frames with a fate other than the computed one", "frames", 0.0, _NEVER),
        "replugged": Limit("frames lost or early at a change of the datapath", "frames", 0.0, _NEVER),
        "softnet drops": Limit("frames lost in the kernel's backlog, machine-wide", "frames", 0.0, 0.0),
        "NIC lost": Limit("lost by a node process: overrun, or not sent", "frames", 0.0, 0.0),
        "NIC agent gap": Limit("time without the agent of a shared NIC", "ns", 0.0, 0.0),
        "NIC down": Limit("frames for a NIC's interface that was down", "frames", 0.0, _NEVER),
        "NIC taken down": Limit("frames for a NIC whose link was taken down", "frames", _NEVER, _NEVER),
        # The machine.
        "timer floor p99": Limit("wake-up latency of the idle machine", "ns", 5 * _MS, 50 * _MS, 0, 0, True),
        "scheduling lag p99": Limit("wake-up latency while probes run", "ns", 10 * _MS, 100 * _MS, 0, 0, True),
        "relay waiting": Limit("share of time in which the relay waited for a processor", "share",
                               0.2, 0.6, 0, 0, True),
        "steal": Limit("processor time that the hypervisor took", "share", 0.1, 0.5, 0, 0, True),
        "load": Limit("processor time that injected loads took", "share", _NEVER, _NEVER),
        "wall clock": Limit("step of the wall clock while frames were timed", "ns", 50 * _US, 1 * _MS),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Limits, and the slow-machine factor."""

    limits: Mapping[str, Limit] = field(default_factory=lambda: LIMITS)
    slow: float = 1.0

    def grade(self, name: str, deviation: float, configured: float = 0.0) -> Grade:
        return self.limits[name].grade(deviation, configured, self.slow)

    def unit(self, name: str) -> str:
        return self.limits[name].unit

    def with_limits(self, name: str, *, degraded: float, invalid: float) -> Table:
        """Return a table with other absolute limits for a kind of finding."""
        limit = replace(self.limits[name], degraded=degraded, invalid=invalid)
        return replace(self, limits={**self.limits, name: limit})


TABLE: Final = Table()
