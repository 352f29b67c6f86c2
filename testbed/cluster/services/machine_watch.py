"""Watch over the other machines of a spread cluster: each machine's supervisor sends them ICMP echo requests.

A machine that leaves `MAX_UNANSWERED` requests in a row unanswered is unreachable: it has died, or is cut off. That is an
event of the cluster on every machine that has links to it, and so is its return. A shorter silence, of `MIN_SILENCE`
requests or more, is an event when it has ended. Requests are counted, and not time: a supervisor that has to wait for its
processor sends none.
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
"""Requests in a row without a reply, after which a machine is unreachable: it is noticed after 1.5 s at the latest."""

MIN_SILENCE: Final = 3
"""Requests in a row without a reply that are an event, even if the machine answers the next one."""

UNREACHABLE: Final = "machine unreachable"
REACHABLE: Final = "machine reachable"
SILENT: Final = "machine silent"

_SEQUENCES: Final = 1 << 16


class Reachability:
    """Whether a machine answers, from the numbers of requests and replies. lost_at: when its last reply came, nanoseconds of
    the caller's clock, if it is unreachable; else None."""

    def __init__(self, now: int) -> None:
        self._sent = 0
        self._answered = 0
        self._heard = now
        self.lost_at: int | None = None

    def next_request(self) -> int:
        """Return the number of the next request. `lost_at` is None until too many before it are unanswered."""
        if self._sent - self._answered >= MAX_UNANSWERED and self.lost_at is None:
            self.lost_at = self._heard
        self._sent += 1
        return self._sent

    def reply(self, number: int, now: int) -> int | None:
        """Note a reply to a request; return when the last one before it came if that ends a silence. number: modulo the
        sequence numbers of ICMP."""
        answered, heard = self._answered, self._heard
        self._answered = self._sent - (self._sent - number) % _SEQUENCES
        self._heard = now
        was_lost = self.lost_at is not None
        self.lost_at = None
        return heard if was_lost or self._answered - answered > MIN_SILENCE else None


class _Peer:
    """Machine under watch."""

    def __init__(self, name: str, local: str, remote: str) -> None:
        self.name = name
        self.local = local
        self.remote = remote
        self.reachability = Reachability(time.time_ns())
        self.line: EchoSocket | None = None


class MachineWatch:
    """Watch over the machines that a part of a cluster has tunnels to."""

    def __init__(self, loop: Loop, directory: Path, namespace: str) -> None:
        """directory: the cluster's, for events. namespace: path of the machine's own network namespace."""
        self._loop = loop
        self._directory = directory
        self._namespace = namespace
        self._peers: dict[tuple[str, str, str], _Peer] = {}
        self._timer = loop.timer(self._on_timer)

    def watch(self, layout: Layout) -> None:
        """Watch the machines that this part has tunnels to, and no others."""
        tunnels = layout.part.tunnels if layout.part is not None else ()
        wanted = dict.fromkeys((tunnel.machine, tunnel.local, tunnel.remote) for tunnel in tunnels)
        for key in [key for key in self._peers if key not in wanted]:
            self._close(self._peers.pop(key))
        for key in wanted:
            if key not in self._peers:
                self._peers[key] = _Peer(*key)
        self._timer.set(self._loop.now() if self._peers else None)

    def _on_timer(self, now: int) -> None:
        for peer in self._peers.values():
            self._receive(peer)  # replies first: this process may have waited for its processor
            was_lost = peer.reachability.lost_at
            number = peer.reachability.next_request()
            lost_at = peer.reachability.lost_at
            if lost_at is not None and was_lost is None:
                silent = time.time_ns() - lost_at
                self._record(UNREACHABLE, peer, silent=silent)
            with contextlib.suppress(OSError):  # counts as unanswered
                self._opened(peer).send(number % _SEQUENCES)
        self._timer.set(now + INTERVAL)

    def _opened(self, peer: _Peer) -> EchoSocket:
        if peer.line is None:
            with namespaces.inside(self._namespace):
                line = peer.line = EchoSocket(peer.local, peer.remote)
            self._loop.watch(line.fileno(), lambda _: self._receive(peer))
        return peer.line

    def _receive(self, peer: _Peer) -> None:
        while peer.line is not None:
            try:
                number = peer.line.receive()
            except OSError:  # nobody has the address at the moment; that is told once
                return
            if number is None:
                return
            now, was_lost = time.time_ns(), peer.reachability.lost_at is not None
            if (heard := peer.reachability.reply(number, now)) is not None:
                self._record(REACHABLE if was_lost else SILENT, peer, gap=[heard, now])

    def _record(self, event: str, peer: _Peer, **facts: object) -> None:
        event_log.record(self._directory, event, machine=peer.name, address=peer.remote, **facts)

    def _close(self, peer: _Peer) -> None:
        if peer.line is not None:
            self._loop.unwatch(peer.line.fileno())
            peer.line.close()


def unreachable(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the machines that are unreachable at the end of these events, each with its event."""
    found: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == UNREACHABLE:
            found[str(event["machine"])] = event
        elif event["event"] == REACHABLE:
            found.pop(str(event["machine"]), None)
    return found
