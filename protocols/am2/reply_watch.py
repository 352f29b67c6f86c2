"""Watch of peers that have accepted requests and do not reply, since their NICs may be unreachable for good.

An accepted request has no deadline: the peer's program replies when it handles the request. But a NIC that has died, or
that the network has cut off for good, sends nothing, and this NIC has no unanswered packet whose resends would show it.
So when a peer that has accepted requests has sent no reply for `Settings.keepalive`, the NIC asks its hosts whether
they wait for that peer, since only the hosts have the requests that have not ended. If a host does, the peer is sent a
keepalive, and the interval is doubled, since the peer's program may merely be slow. If the keepalive is given up, as
any message can be, the hosts end the requests as unreachable.
"""

from __future__ import annotations

from typing import Final

from protocols.am2.nic_endpoint import NicEndpoint
from protocols.am2.peers import Peer


class PeerWatch:
    """Watch of one peer. endpoint: sender of the keepalives; its messages are the keepalives in flight. interval:
    nanoseconds between checks. reply_count: the peer's count of replies at the last check. due_at: time of the next
    check; None: none is due. is_asked: the hosts have been asked whether they wait for the peer."""

    __slots__ = ("due_at", "endpoint", "interval", "is_asked", "reply_count")

    def __init__(self, endpoint: NicEndpoint) -> None:
        self.endpoint: Final = endpoint
        self.interval = self.reply_count = 0
        self.due_at: int | None = None
        self.is_asked = False


class ReplyWatch:
    """Watches of all peers. interval: nanoseconds without a reply before the hosts are asked; 0: no peer is watched.
    new_peers: peers that have accepted requests and whose watch has not begun, each with the endpoint of a request.
    due_at: time of the earliest check; None: none is due."""

    __slots__ = ("_interval", "_watches", "due_at", "new_peers")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._watches: dict[Peer, PeerWatch] = {}
        self.new_peers: Final[dict[Peer, NicEndpoint]] = {}
        self.due_at: int | None = None

    def on_accepted(self, peer: Peer, endpoint: NicEndpoint) -> None:
        """Note a peer that has accepted a request and is not watched; its watch begins with the next `begin`."""
        if self._interval:
            peer.is_watched = True
            self.new_peers[peer] = endpoint

    def begin(self, now: int) -> None:
        """Begin to watch the new peers."""
        for peer, endpoint in self.new_peers.items():
            watch = self._watches.get(peer)
            if watch is None:
                # A separate NIC endpoint, since the requester's may leave its frame, or be destroyed, meanwhile.
                watch = self._watches[peer] = PeerWatch(NicEndpoint(endpoint.number, endpoint.frames))
            self._schedule_check(now, peer, watch, self._interval)
        self.new_peers.clear()
        self._update_due_at()

    def silent_peers(self, now: int) -> list[Peer]:
        """Check the peers that are due. Returns those that have sent no reply since their last check, and about which
        the hosts must be asked."""
        silent = []
        for peer, watch in self._watches.items():
            if watch.due_at is None or watch.due_at > now:
                continue
            if watch.reply_count != peer.reply_count:
                self._schedule_check(now, peer, watch, self._interval)
            elif watch.endpoint.messages:  # a keepalive is in flight
                self._schedule_check(now, peer, watch, watch.interval)
            else:
                watch.due_at, watch.is_asked, peer.is_watched = None, True, False
                silent.append(peer)
        self._update_due_at()
        return silent

    def on_awaited(self, now: int, peer: Peer) -> NicEndpoint | None:
        """Handle a host's answer that it waits for a peer's replies. Returns the endpoint that sends a keepalive, or
        None if the hosts have not been asked or another host has answered."""
        watch = self._watches.get(peer)
        if watch is None or not watch.is_asked:
            return None
        watch.is_asked, peer.is_watched = False, True
        self._schedule_check(now, peer, watch, 2 * watch.interval)
        self._update_due_at()
        return watch.endpoint

    def end(self, peer: Peer) -> None:
        """End the watch of a peer that has restarted or is unreachable."""
        self.new_peers.pop(peer, None)
        self._watches.pop(peer, None)
        peer.is_watched = False
        self._update_due_at()

    def _schedule_check(self, now: int, peer: Peer, watch: PeerWatch, interval: int) -> None:
        watch.reply_count, watch.interval, watch.due_at = peer.reply_count, interval, now + interval

    def _update_due_at(self) -> None:
        times = [watch.due_at for watch in self._watches.values() if watch.due_at is not None]
        self.due_at = min(times, default=None)
