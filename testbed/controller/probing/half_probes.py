"""Probes of links between machines: each machine sends at its ends of them, and receives what comes to its ends.

The joint call of the machines' workers. Times are of each machine's wall clock; `spread_check` brings them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from testbed.cluster.plan.veth_wiring import Wiring
from testbed.cluster.records.state import Store
from testbed.controller.probing import probe_frames
from testbed.controller.probing.measurement import probe_port
from testbed.controller.probing.probe_frames import COUNTED, MARKER
from testbed.controller.probing.probes import ProbePort, device_counters
from testbed.engine.loop import Loop
from testbed.errors import KernelError
from testbed.kernel.taps import Sender, Tap
from testbed.kernel.waiter import Waiter
from testbed.machines.worker import Dialogue
from testbed.spec.layout import End

PROBE: Final = "probe"
"""Name of the joint call."""

_OPEN, _SENT = "taps open", "probes sent"
_BUFFER: Final = 32 << 20
_BATCH: Final = 64
_SECOND: Final = 1_000_000_000
_WARM_UP: Final = 200_000_000  # ns of markers: until stamps are the kernel's, and neighbours are known
_MARKER_EVERY: Final = 20_000_000


def probe_part(
    dialogue: Dialogue,
    name: str,
    run: int,
    outgoing: Sequence[Mapping[str, Any]],
    incoming: Sequence[Mapping[str, Any]],
    seconds: float,
    linger: float,
) -> object:
    """Probe the directions of links that begin or end on this machine.

    outgoing: of each its number, the end ("owner", "port") where it begins, "interval" in ns and "burst". incoming: the
    number, and the end where it comes in. run: distinguishes these probes from another check's. linger: seconds in which
    probes may still arrive. Raises NotFoundError, KernelError.
    """
    store = Store()
    state = store.choose(name)
    wiring = Wiring.of(state.layout, state.datapaths)

    def port(direction: Mapping[str, Any]) -> ProbePort:
        return probe_port(state, wiring, End(direction["owner"], direction["port"]))

    try:
        with ExitStack() as stack:
            half = _Half(stack, run, {d["number"]: port(d) for d in outgoing}, {d["number"]: port(d) for d in incoming})
            dialogue.barrier(_OPEN)
            half.send({d["number"]: (d["interval"], d["burst"]) for d in outgoing}, seconds)
            dialogue.barrier(_SENT)
            half.listen(linger)
            return half.result()
    except FileNotFoundError as error:
        raise KernelError(f"a namespace of the cluster is gone: {error.filename}") from error


class _Half:
    """The taps and senders of one machine, and what they have seen. sources, sinks: ports by direction."""

    def __init__(
        self, stack: ExitStack, run: int, sources: Mapping[int, ProbePort], sinks: Mapping[int, ProbePort]
    ) -> None:
        self._run = run
        self._sources = sources
        self._sinks = sinks
        self._left: dict[int, list[int]] = {number: [] for number in sources}
        self._came: dict[int, list[tuple[int, int, bool]]] = {number: [] for number in sinks}
        self._seen = dict.fromkeys(sinks, (0, 0))  # probes of any kind: frames, bytes
        self._waiter = Waiter(spin=0)
        stack.callback(self._waiter.close)
        self._loop = Loop(self._waiter)
        self._taps: dict[ProbePort, Tap] = {}
        self._senders: dict[ProbePort, Sender] = {}
        for port in {*sources.values(), *sinks.values()}:
            tap = self._taps[port] = Tap(port.namespace, port.device, probe_frames.ACCEPTED, _BUFFER, port.port)
            stack.callback(tap.close)
            self._loop.watch(tap.fileno(), partial(self._hear, port))
        for port in {*sources.values()}:
            sender = self._senders[port] = Sender(port.namespace, port.device)
            stack.callback(sender.close)
        self._before = self._received()

    def send(self, paces: Mapping[int, tuple[int, int]], seconds: float) -> None:
        """Send markers for a while, and then probes for `seconds`. paces: interval in ns and burst, by direction."""
        self._mark_for(_WARM_UP)
        begun = self._loop.now()
        end = begun + round(seconds * _SECOND)

        def pulse(number: int, now: int) -> None:
            interval, burst = paces[number]
            for _ in range(burst):
                self._send(number, COUNTED, len(self._left[number]))
                self._left[number].append(0)
            if now + interval < end:
                self._loop.at(max(now, self._loop.now()) + interval, partial(pulse, number))

        for place, number in enumerate(paces):
            self._loop.at(begun + paces[number][0] * place // len(paces), partial(pulse, number))
        self._loop.at(end, self._stop)
        self._loop.run()

    def listen(self, seconds: float) -> None:
        self._loop.at(self._loop.now() + round(seconds * _SECOND), self._stop)
        self._loop.run()

    def _stop(self, _now: int) -> None:
        self._loop.stop()

    def _mark_for(self, duration: int) -> None:
        end = self._loop.now() + duration

        def mark(now: int) -> None:
            if now >= end:
                self._loop.stop()
                return
            for number in self._sources:
                self._send(number, MARKER, 0)
            self._loop.at(now + _MARKER_EVERY, mark)

        self._loop.at(self._loop.now(), mark)
        self._loop.run()

    def _send(self, number: int, kind: int, index: int) -> None:
        self._senders[self._sources[number]].send(probe_frames.build(self._run, number, kind, index))

    def _hear(self, port: ProbePort, _now: int = 0) -> None:
        for outgoing, when, length, head in self._taps[port].read(_BATCH):
            seen = probe_frames.read(head)
            number = self._direction_in(port) if seen is None else seen.path
            if outgoing:
                if seen is not None and seen.kind == COUNTED and self._sources.get(number) == port:
                    self._left[number][seen.number] = when
                continue
            if self._sinks.get(number) != port:
                continue
            frames, size = self._seen[number]
            self._seen[number] = frames + 1, size + length
            if seen is None or (seen.kind == COUNTED and seen.run == self._run):
                self._came[number].append((-1, when, False) if seen is None else (seen.number, when, seen.intact))

    def _direction_in(self, port: ProbePort) -> int:
        """Return the direction that comes in at a port, of which there is one, -1 for none."""
        return next((number for number, sink in self._sinks.items() if sink == port), -1)

    def _received(self) -> dict[int, tuple[int, int]]:
        """Return the frames and bytes that have come in so far, by direction."""
        counters = {namespace: device_counters(namespace) for namespace in {s.namespace for s in self._sinks.values()}}
        found = {}
        for number, sink in self._sinks.items():
            device = counters[sink.namespace].get(sink.device)
            if device is None:
                raise KernelError(f"the interface {sink.device} has gone while it was probed")
            found[number] = device.rx_packets, device.rx_bytes
        return found

    def result(self) -> dict[str, object]:
        """Return when the probes left, by direction and number, 0 for one that did not; those that came, each with its
        number (-1: unreadable), its time and whether it was intact; and other frames and bytes that came."""
        now, others = self._received(), {}
        for number, (frames, size) in now.items():
            probes, before = self._seen[number], self._before[number]
            others[number] = max(0, frames - before[0] - probes[0]), max(0, size - before[1] - probes[1])
        overrun = {port: tap.overrun() for port, tap in self._taps.items()}
        return {
            "left": {str(number): times for number, times in self._left.items()},
            "came": {str(number): found for number, found in self._came.items()},
            "others": {str(number): found for number, found in others.items()},
            "overrun": {str(number): overrun[port] for number, port in (*self._sources.items(), *self._sinks.items())},
        }
