"""Probes of links between machines: each machine sends and receives probes at its ends of the links.

This is the joint call of the machines' workers. Times are those of each machine's wall clock; `spread_check` joins the
results of both ends.
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
_BUFFER: Final = 32 << 20  # bytes of a tap
_BATCH: Final = 64  # frames per read
_SECOND: Final = 1_000_000_000
_WARM_UP: Final = 200_000_000  # ns of markers, until the kernel stamps frames and neighbours are resolved
_MARKER_INTERVAL: Final = 20_000_000  # ns


def probe_part(
    dialogue: Dialogue,
    name: str,
    run: int,
    outgoing: Sequence[Mapping[str, Any]],
    incoming: Sequence[Mapping[str, Any]],
    seconds: float,
    linger: float,
) -> object:
    """Probe the directions of links that begin or end on this machine, and return the `result` of this machine.

    name: of the cluster. outgoing: directions that begin here: "number", the end ("owner", "port"), "interval" in ns, and
    "burst". incoming: directions that end here: "number" and the end. run: distinguishes these probes from those of other
    checks. seconds: duration of sending. linger: seconds to receive probes in flight. Raises NotFoundError, KernelError.
    """
    store = Store()
    state = store.choose(name)
    wiring = Wiring.from_datapaths(state.layout, state.datapaths)

    def port(direction: Mapping[str, Any]) -> ProbePort:
        return probe_port(state, wiring, End(direction["owner"], direction["port"]))

    try:
        with ExitStack() as stack:
            probes = _MachineProbes(
                stack, run, {d["number"]: port(d) for d in outgoing}, {d["number"]: port(d) for d in incoming}
            )
            dialogue.barrier(_OPEN)
            probes.send({d["number"]: (d["interval"], d["burst"]) for d in outgoing}, seconds)
            dialogue.barrier(_SENT)
            probes.listen(linger)
            return probes.result()
    except FileNotFoundError as error:
        raise KernelError(f"a namespace of the cluster is gone: {error.filename}") from error


class _MachineProbes:
    """Taps and senders of one machine, with the sent and received probes. sources, sinks: ports by direction."""

    def __init__(
        self, stack: ExitStack, run: int, sources: Mapping[int, ProbePort], sinks: Mapping[int, ProbePort]
    ) -> None:
        self._run = run
        self._sources = sources
        self._sinks = sinks
        self._departures: dict[int, list[int]] = {number: [] for number in sources}
        self._arrivals: dict[int, list[tuple[int, int, bool]]] = {number: [] for number in sinks}
        self._received_probes = dict.fromkeys(sinks, (0, 0))  # of any kind: frames, bytes
        self._waiter = Waiter(spin=0)
        stack.callback(self._waiter.close)
        self._loop = Loop(self._waiter)
        self._taps: dict[ProbePort, Tap] = {}
        self._senders: dict[ProbePort, Sender] = {}
        for port in {*sources.values(), *sinks.values()}:
            tap = self._taps[port] = Tap(port.namespace, port.device, probe_frames.ACCEPTED, _BUFFER, port.port)
            stack.callback(tap.close)
            self._loop.watch(tap.fileno(), partial(self._read_tap, port))
        for port in {*sources.values()}:
            sender = self._senders[port] = Sender(port.namespace, port.device)
            stack.callback(sender.close)
        self._counters_before = self._read_counters()

    def send(self, paces: Mapping[int, tuple[int, int]], seconds: float) -> None:
        """Send markers for _WARM_UP, and then probes for `seconds`. paces: interval in ns and burst, by direction."""
        self._send_markers(_WARM_UP)
        started = self._loop.now()
        end = started + round(seconds * _SECOND)

        def send_burst(number: int, now: int) -> None:
            interval, burst = paces[number]
            for _ in range(burst):
                self._send(number, COUNTED, len(self._departures[number]))
                self._departures[number].append(0)
            if now + interval < end:
                self._loop.at(max(now, self._loop.now()) + interval, partial(send_burst, number))

        for index, number in enumerate(paces):
            self._loop.at(started + paces[number][0] * index // len(paces), partial(send_burst, number))
        self._loop.at(end, self._stop)
        self._loop.run()

    def listen(self, seconds: float) -> None:
        """Receive probes for `seconds`."""
        self._loop.at(self._loop.now() + round(seconds * _SECOND), self._stop)
        self._loop.run()

    def _stop(self, _now: int) -> None:
        self._loop.stop()

    def _send_markers(self, duration: int) -> None:
        end = self._loop.now() + duration

        def mark(now: int) -> None:
            if now >= end:
                self._loop.stop()
                return
            for number in self._sources:
                self._send(number, MARKER, 0)
            self._loop.at(now + _MARKER_INTERVAL, mark)

        self._loop.at(self._loop.now(), mark)
        self._loop.run()

    def _send(self, number: int, kind: int, index: int) -> None:
        self._senders[self._sources[number]].send(probe_frames.build(self._run, number, kind, index))

    def _read_tap(self, port: ProbePort, _now: int = 0) -> None:
        for outgoing, when, length, head in self._taps[port].read(_BATCH):
            probe = probe_frames.parse(head)
            number = self._incoming_direction(port) if probe is None else probe.path
            if outgoing:
                if probe is not None and probe.kind == COUNTED and self._sources.get(number) == port:
                    self._departures[number][probe.number] = when
                continue
            if self._sinks.get(number) != port:
                continue
            frames, size = self._received_probes[number]
            self._received_probes[number] = frames + 1, size + length
            if probe is None:
                self._arrivals[number].append((-1, when, False))
            elif probe.kind == COUNTED and probe.run == self._run:
                self._arrivals[number].append((probe.number, when, probe.is_intact))

    def _incoming_direction(self, port: ProbePort) -> int:
        """Return the direction that ends at a port, at most one; -1 for none."""
        return next((number for number, sink in self._sinks.items() if sink == port), -1)

    def _read_counters(self) -> dict[int, tuple[int, int]]:
        """Return the frames and bytes received so far, by direction. Raises KernelError for a missing interface."""
        counters = {namespace: device_counters(namespace) for namespace in {s.namespace for s in self._sinks.values()}}
        received = {}
        for number, sink in self._sinks.items():
            device = counters[sink.namespace].get(sink.device)
            if device is None:
                raise KernelError(f"the interface {sink.device} was removed while it was probed")
            received[number] = device.rx_packets, device.rx_bytes
        return received

    def result(self) -> dict[str, object]:
        """Return, by direction, "left": times at which probes were sent, by number, 0 if not sent; "came": received probes,
        each with its number (-1: unreadable), its time, and whether it was intact; "others": other received frames and
        bytes; "overrun": probes that were not read in time."""
        counters, others = self._read_counters(), {}
        for number, (frames, size) in counters.items():
            probes, before = self._received_probes[number], self._counters_before[number]
            others[number] = max(0, frames - before[0] - probes[0]), max(0, size - before[1] - probes[1])
        overrun = {port: tap.overrun() for port, tap in self._taps.items()}
        return {
            "left": {str(number): times for number, times in self._departures.items()},
            "came": {str(number): arrivals for number, arrivals in self._arrivals.items()},
            "others": {str(number): counts for number, counts in others.items()},
            "overrun": {str(number): overrun[port] for number, port in (*self._sources.items(), *self._sinks.items())},
        }
