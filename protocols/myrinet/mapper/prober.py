"""Sending of probes, with a limited window and rate, and with retries.

Silence means that the port is not connected, or that a probe or its answer was lost. The number of tries depends on the
number of cables on the route of the probe and its answer, and on the measured loss, which is estimated from the
unanswered tries of probes that were answered later. The time-out depends on the measured answer times, since hosts may
be busy. An answer to an earlier try is accepted until the probe's last try expires.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Final, Protocol

from protocols.core.timers import Timers
from protocols.myrinet.envelope import Route
from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.settings import Settings

_FALSE_SILENCE: Final = 1e-5
"""Approximate probability that a connected port is mistaken for a silent one."""
_MAX_REMEMBERED_PROBES: Final = 1024
"""Number of recent probes whose late answers are recognised."""
_PRIOR: Final = (1, 100)
"""Initial estimate of the loss: number of lost tries, and number of cables that all tries have taken."""


class Pacer:
    """Rate limit. interval: average nanoseconds between two frames. burst: maximum frames without an interval."""

    __slots__ = ("_due_at", "_interval", "_slack")

    def __init__(self, interval: int, burst: int) -> None:
        self._interval = interval
        self._slack = (burst - 1) * interval
        self._due_at = 0  # time of the next frame at equal intervals

    @property
    def next_send_time(self) -> int:
        """Time from which a frame may be state."""
        return self._due_at - self._slack

    def take(self, now: int) -> bool:
        """Count a frame and return True if it may be sent now."""
        if now < self.next_send_time:
            return False
        self._due_at = max(self._due_at, now) + self._interval
        return True


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """A host's answer. number: of its node. incarnation, address: of its NIC. epoch, author: of its route table."""

    number: int
    incarnation: int
    address: bytes
    epoch: int = 0
    author: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe. route: to the host, or from this NIC through the switch and back. target: the switch (or entry) and port
    that the probe tests; meaningful to its batch."""

    is_to_host: bool
    route: Route
    target: tuple[int, int] = (0, 0)

    @property
    def cables(self) -> int:
        """Number of cables on the route of the probe and its answer."""
        return (1 + self.is_to_host) * (len(self.route) + 1)


Answer = HostAnswer | None
"""The host's answer; None: the loopback probe has returned."""


class Batch(Protocol):
    """Probes that do not depend on each other."""

    @property
    def probes(self) -> Sequence[Probe]:
        """All probes of the batch."""
        ...

    @property
    def has_retries(self) -> bool:
        """Whether unanswered probes are sent again."""
        ...

    @property
    def is_patient(self) -> bool:
        """Whether the time-out doubles with each try, since silence would change the map, and the hosts may merely be
        busy."""
        ...

    def is_wanted(self, probe: Probe) -> bool:
        """Whether the probe's answer is still needed."""
        ...

    def on_answer(self, probe: Probe, answer: Answer) -> None:
        """Handle the answer to a probe."""
        ...


@dataclass(slots=True)
class _ProbeState:
    """State of a probe. tries: number of tries. number: of its last try. is_done: it is answered, or all tries have
    expired, or its batch has ended."""

    probe: Probe
    tries: int = 0
    number: int = 0
    is_done: bool = False


class _AnswerTimeout:
    """Time-out of probes: three times the median of the last answer times, within minimum and maximum; the minimum
    before the first answer. The median is insensitive to the rare answers that waited until the network resolved a
    deadlock."""

    __slots__ = ("_last_durations", "_maximum", "_minimum")

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum, self._maximum = minimum, maximum
        self._last_durations: deque[int] = deque(maxlen=64)

    @property
    def timeout(self) -> int:
        if not self._last_durations:
            return self._minimum
        median = sorted(self._last_durations)[len(self._last_durations) // 2]
        return min(max(3 * median, self._minimum), self._maximum)

    def add(self, duration: int) -> None:
        self._last_durations.append(duration)


class Prober:
    """Runner of batches, one at a time. send: sends a probe, given the number of its try."""

    __slots__ = (
        "_answer_timeout",
        "_batch",
        "_cables",
        "_counters",
        "_lost",
        "_number",
        "_pacer",
        "_queue",
        "_send",
        "_sent",
        "_settings",
        "_timers",
        "_waiting",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, counters: Counters, pacer: Pacer, send: Callable[[Probe, int], None]
    ) -> None:
        self._settings, self._counters, self._pacer, self._send = settings, counters, pacer, send
        self._batch: Batch | None = None
        self._queue: deque[_ProbeState] = deque()
        self._waiting: dict[int, _ProbeState] = {}  # probes whose last try has not expired, by its number
        self._timers: Timers[int] = Timers()
        self._answer_timeout = _AnswerTimeout(settings.timeout, settings.longest_timeout)
        self._sent: dict[int, tuple[int, _ProbeState]] = {}  # recent tries by number: send time, state of the probe
        self._number = 0
        self._lost, self._cables = _PRIOR

    @property
    def is_busy(self) -> bool:
        """Whether a batch is in progress."""
        return self._batch is not None

    @property
    def has_losses(self) -> bool:
        """Whether probes were lost that should have been answered."""
        return self._lost > _PRIOR[0]

    def tries(self, probe: Probe) -> int:
        """Return the maximum number of tries for a probe, at the present estimate of the loss."""
        settings, loss_per_cable = self._settings, self._lost / self._cables
        if loss_per_cable >= 1:
            return settings.max_tries
        loss = 1 - (1 - loss_per_cable) ** probe.cables
        tries = log(_FALSE_SILENCE) / log(loss) if loss < 1 else settings.max_tries
        return min(max(ceil(tries), settings.min_tries), settings.max_tries)

    @property
    def deadline(self) -> int | None:
        """Time at which `on_timer` is due, or None."""
        if self._queue and len(self._waiting) < self._settings.window:
            return self._pacer.next_send_time
        return self._timers.deadline

    def run(self, now: int, batch: Batch) -> None:
        """Start a batch; an unfinished batch is cancelled."""
        self.stop()
        self._batch = batch
        self._queue.extend(map(_ProbeState, batch.probes))
        self.on_timer(now)

    def stop(self) -> None:
        """Cancel the batch, if one is in progress."""
        self._batch = None
        for state in (*self._queue, *self._waiting.values(), *(state for _, state in self._sent.values())):
            state.is_done = True
        self._queue.clear()
        self._waiting.clear()
        self._timers = Timers()

    def on_answer(self, now: int, number: int, answer: Answer) -> None:
        """Handle an answer. number: of the answered try."""
        sent_at, state = self._sent.pop(number, (0, None))
        if state is None or state.probe.is_to_host != (answer is not None):
            self._counters.late_answers += 1
            return
        self._answer_timeout.add(now - sent_at)
        batch = self._batch
        if state.number != number or state.is_done or batch is None:
            self._counters.late_answers += 1
        if state.is_done or batch is None:
            return
        state.is_done = True
        if self._waiting.pop(state.number, None) is not None:
            self._timers.cancel(state.number)
        self._counters.answers_received += 1
        self._cables += state.tries * state.probe.cables
        self._lost += state.tries - 1
        batch.on_answer(state.probe, answer)
        self.on_timer(now)

    def on_timer(self, now: int) -> None:
        """Send the probes that may be sent, and detect lost ones."""
        batch = self._batch
        if batch is None:
            return
        for number in self._timers.expired(now):
            state = self._waiting.pop(number)
            if not batch.is_wanted(state.probe):
                continue
            if state.tries < (self.tries(state.probe) if batch.has_retries else 1):
                self._queue.append(state)
            else:
                state.is_done = True
                self._counters.silent += 1
        queue, waiting, settings = self._queue, self._waiting, self._settings
        while queue and len(waiting) < settings.window:
            if queue[0].is_done or not batch.is_wanted(queue[0].probe):
                queue.popleft()
                continue
            if not self._pacer.take(now):
                return
            state = queue.popleft()
            state.tries += 1
            self._number = state.number = number = self._number + 1 & 0xFFFF_FFFF
            waiting[number] = state
            self._sent[number] = now, state
            if len(self._sent) > _MAX_REMEMBERED_PROBES:
                del self._sent[next(iter(self._sent))]
            wait = self._answer_timeout.timeout
            if batch.is_patient:
                wait = min(wait << state.tries - 1, settings.longest_timeout)
            self._timers.set(number, now + wait)
            self._counters.probes_sent += 1
            self._send(state.probe, number)
        if not queue and not waiting:
            self._batch = None
