"""Compare each transition of a peer table with the state table."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.core.peers import KNOWN, PEER, UNKNOWN, Peer, PeerEvents, Peers, Standing
from tests.sim.state_watch import Watch


def state_of(peer: Peer) -> str:
    return KNOWN if peer.incarnation else UNKNOWN


def watch_peers(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Watch every peer table of this process until the patch is undone."""
    peer, admit, classify = Peers.peer, Peers.admit, Peers.classify

    def watched_peer(peers: Peers[Peer, Any], number: int) -> Peer:
        is_new = number not in peers.known
        found_peer = peer(peers, number)
        if is_new and found_peer.incarnation:
            watch.record(PEER, UNKNOWN, "presumed", state_of(found_peer))
        return found_peer

    def watched_admit(
        peers: Peers[Peer, Any], now: int, peer: Peer, incarnation: int, events: PeerEvents[Peer]
    ) -> bool:
        before, known = state_of(peer), peer.incarnation
        is_last = admit(peers, now, peer, incarnation, events)
        if not incarnation:
            event = "no incarnation"
        elif not known:
            event = "incarnation"
        elif incarnation == known:
            event = "same incarnation"
        else:
            event = "later incarnation" if is_last else "earlier incarnation"
        watch.record(PEER, before, event, state_of(peer))
        return is_last

    def watched_classify(
        peers: Peers[Peer, Any], now: int, peer: Peer, incarnation: int, addressee: int, events: PeerEvents[Peer]
    ) -> Standing:
        standing = classify(peers, now, peer, incarnation, addressee, events)
        if standing is Standing.MISDIRECTED:
            watch.record(PEER, state_of(peer), "meant for another incarnation", state_of(peer))
        return standing

    patch.setattr(Peers, "peer", watched_peer)
    patch.setattr(Peers, "admit", watched_admit)
    patch.setattr(Peers, "classify", watched_classify)
