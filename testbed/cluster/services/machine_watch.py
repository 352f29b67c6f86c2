"""Monitor of the other machines of a spread cluster: each machine's supervisor sends ICMP echo requests to them.

A machine that does not answer `MAX_UNANSWERED` consecutive requests is unreachable: it has died, or is cut off. Every
machine with links to it records an event, and another one when it answers again. A shorter silence, of `MIN_SILENCE`
requests or more, is recorded when it has ended. Unanswered requests are counted, and no time is measured, because a
supervisor that is not scheduled sends no requests.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.engine.loop import Loop
from testbed.kernel import namespaces
from testbed.kernel.echo import EchoSocket
from testbed.runtime import event_log
from testbed.spec.layout import Layout

INTERVAL: Final = 250_000_000
"""Nanoseconds between two requests to a machine."""

MAX_UNANSWERED: Final = 5
"""Number of consecutive requests without a reply after which a machine is unreachable: at most 1.5 s."""

MIN_SILENCE: Final = 3
"""Number of consecutive requests without a reply that are recorded even if the machine answers the next one."""

# Names of events
UNREACHABLE: Final = "machine unreachable"
REACHABLE: Final = "machine reachable"
SILENT: Final = "machine silent"

_SEQUENCE_NUMBERS: Final = 1 << 16  # of ICMP echo requests


class Reachability:
    """Reachability of a machine, derived from the numbers of requests and replies.

    Times are nanoseconds of the caller's clock. lost_at: time of the last reply if the machine is unreachable, else None.
    Before the first reply, it is the time of creation.
    """

    def __init__(self, now: int, lost_at: int | None = None) -> None:
        self._sent = 0
        self._answered = 0
        self._last_reply = now if lost_at is None else lost_at
        self.lost_at = lost_at

    def next_request(self) -> int:
        """Return the number of the next request. Sets `lost_at` if too many requests before it are unanswered."""
        if self._sent - self._answered >= MAX_UNANSWERED and self.lost_at is None:
            self.lost_at = self._last_reply
        self._sent += 1
        return self._sent

    def on_reply(self, number: int, now: int) -> int | None:
        """Process a reply; return the time of the previous reply if this one ends a silence, else None.

        number: number of the answered request, modulo 2**16.
        """
        answered, last_reply = self._answered, self._last_reply
        self._answered = self._sent - (self._sent - number) % _SEQUENCE_NUMBERS
        self._last_reply = now
        was_lost = self.lost_at is not None
        self.lost_at = None
        return last_reply if was_lost or self._answered - answered > MIN_SILENCE else None


class _Peer:
    """A watched machine. local, remote: addresses of the tunnel's ends."""

    def __init__(self, name: str, local: str, remote: str, reachability: Reachability) -> None:
        self.name = name
        self.local = local
        self.remote = remote
        self.reachability = reachability
        self.socket: EchoSocket | None = None


class MachineWatch:
    """Monitor of the machines to which this machine's part of a spread cluster has tunnels."""

    def __init__(self, loop: Loop, directory: Path, namespace: str) -> None:
        """directory: the cluster's, for events. namespace: path of this machine's initial network namespace."""
        self._loop = loop
        self._directory = directory
        self._namespace = namespace
        self._peers: dict[tuple[str, str, str], _Peer] = {}
        self._timer = loop.timer(self._on_timer)

    def watch(self, layout: Layout) -> None:
        """Watch the machines to which this part has tunnels, and no others.

        A machine that a previous supervisor has recorded as unreachable is unreachable until it answers.
        """
        tunnels = layout.part.tunnels if layout.part is not None else ()
        keys = dict.fromkeys((tunnel.machine, tunnel.local, tunnel.remote) for tunnel in tunnels)
        for key in [key for key in self._peers if key not in keys]:
            self._close(self._peers.pop(key))
        if added := [key for key in keys if key not in self._peers]:
            lost = unreachable(event_log.read(self._directory))
            for machine, local, remote in added:
                event = lost.get(machine)
                lost_at = None
                if event is not None and event["address"] == remote:
                    lost_at = event["time"] - event["silent"]
                reachability = Reachability(time.time_ns(), lost_at)
                self._peers[machine, local, remote] = _Peer(machine, local, remote, reachability)
        self._timer.set(self._loop.now() if self._peers else None)

    def _on_timer(self, now: int) -> None:
        for peer in self._peers.values():
            self._receive(peer)  # replies that arrived while this process was not scheduled
            was_lost = peer.reachability.lost_at is not None
            number = peer.reachability.next_request()
            lost_at = peer.reachability.lost_at
            if lost_at is not None and not was_lost:
                self._record(UNREACHABLE, peer, silent=time.time_ns() - lost_at)
            with contextlib.suppress(OSError):  # counts as unanswered
                self._socket_of(peer).send(number % _SEQUENCE_NUMBERS)
        self._timer.set(now + INTERVAL)

    def _socket_of(self, peer: _Peer) -> EchoSocket:
        if peer.socket is None:
            with namespaces.inside(self._namespace):
                socket = peer.socket = EchoSocket(peer.local, peer.remote)
            self._loop.watch(socket.fileno(), lambda _: self._receive(peer))
        return peer.socket

    def _receive(self, peer: _Peer) -> None:
        while peer.socket is not None:
            try:
                number = peer.socket.receive()
            except OSError:  # an ICMP error, such as host unreachable; the socket reports it once
                return
            if number is None:
                return
            now, was_lost = time.time_ns(), peer.reachability.lost_at is not None
            if (last_reply := peer.reachability.on_reply(number, now)) is not None:
                self._record(REACHABLE if was_lost else SILENT, peer, gap=[last_reply, now])

    def _record(self, event: str, peer: _Peer, **attributes: object) -> None:
        event_log.record_if_possible(self._directory, event, machine=peer.name, address=peer.remote, **attributes)

    def _close(self, peer: _Peer) -> None:
        if peer.socket is not None:
            self._loop.unwatch(peer.socket.fileno())
            peer.socket.close()


def unreachable(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the machines that are unreachable after these events: machine -> its latest `UNREACHABLE` event."""
    events_by_machine: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == UNREACHABLE:
            events_by_machine[str(event["machine"])] = event
        elif event["event"] == REACHABLE:
            events_by_machine.pop(str(event["machine"]), None)
    return events_by_machine
