"""Match receives to messages.

A lane is the sequence of messages from one sender to one receiver in one context under one tag. They fit the same
receives, and none overtakes another: receives, in the order in which they were begun, get messages in the order of
their sends. So both sequences are equal except for messages that were lost, duplicated, changed or overtaken. This
holds across lives, too: a restarted program sends and receives after its former life.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from testbed.controller.checkers.alignment import align, fits
from testbed.controller.checkers.histories import Histories, Receive, Send


@dataclass(slots=True)
class Pairing:
    """Matches of all lanes.

    pairs: a message and the receive that got it intact. changed: received with another content. twice: received once
    more, by this receive. strangers: receives of a message that was not sent. overtaken: a message, and the later one
    that was received before it. missing: messages that were not received, each with the receive of the next message of
    its lane and of the same life of its sender; None where no later one was received.
    """

    pairs: list[tuple[Send, Receive]] = field(default_factory=list)
    changed: list[tuple[Send, Receive]] = field(default_factory=list)
    twice: list[tuple[Send, Receive]] = field(default_factory=list)
    strangers: list[Receive] = field(default_factory=list)
    overtaken: list[tuple[Send, Send]] = field(default_factory=list)
    missing: list[tuple[Send, Receive | None]] = field(default_factory=list)
    lanes: int = 0


def match_messages(histories: Histories, costs: Callable[[Sequence[Send]], list[int]]) -> Pairing:
    """Match all messages of a run. costs: of leaving the messages of a lane without a receive, see `alignment`."""
    sent: dict[tuple[int, int, int, int], list[Send]] = defaultdict(list)
    received: dict[tuple[int, int, int, int], list[Receive]] = defaultdict(list)
    for sends in histories.sends:
        for send in sends:
            sent[send.rank, send.peer, send.context, send.tag].append(send)
    for receives in histories.receives:
        for receive in receives:
            if receive.source >= 0:
                received[receive.source, receive.rank, receive.context, receive.came_tag].append(receive)
    pairing = Pairing(lanes=len(sent))
    for lane in [*sent, *(lane for lane in received if lane not in sent)]:
        _pair(sent.get(lane, []), received.get(lane, []), costs, pairing)
    return pairing


def _pair(
    sends: Sequence[Send], receives: Sequence[Receive], costs: Callable[[Sequence[Send]], list[int]], pairing: Pairing
) -> None:
    """Match one lane."""
    if len(sends) == len(receives) and all(map(fits, sends, receives)):
        pairing.pairs.extend(zip(sends, receives, strict=True))
        return
    explained, unknown = _separated(sends, receives, pairing)
    places = align(sends, explained, costs(sends))
    if places is None:
        places = _overtaking(sends, explained, pairing)
        unknown += [receive for receive, at in zip(explained, places, strict=True) if at < 0]
    got: list[Receive | None] = [None] * len(sends)
    for receive, at in zip(explained, places, strict=True):
        if at >= 0:
            got[at] = receive
            pairing.pairs.append((sends[at], receive))
    if unknown:
        _change(sends, receives, got, unknown, pairing)
    missing: list[tuple[Send, Receive | None]] = []
    following: Receive | None = None
    life = -1
    for send, by in zip(reversed(sends), reversed(got), strict=True):
        if send.life != life:
            following, life = None, send.life
        if by is None:
            missing.append((send, following))
        else:
            following = by
    pairing.missing += reversed(missing)


def _separated(
    sends: Sequence[Send], receives: Sequence[Receive], pairing: Pairing
) -> tuple[list[Receive], list[Receive]]:
    """Separate receives of contents that were sent, each at most as often as it was sent, from those whose content
    was not sent."""
    unmatched = Counter((send.size, send.digest) for send in sends)
    first: dict[tuple[int, str], Send] = {}
    for send in sends:
        first.setdefault((send.size, send.digest), send)
    longest = max((send.size for send in sends), default=-1)
    explained: list[Receive] = []
    unknown: list[Receive] = []
    for receive in receives:
        key = (receive.came_size, receive.digest)
        if receive.error:
            (explained if longest > receive.size else unknown).append(receive)
        elif unmatched[key]:
            unmatched[key] -= 1
            explained.append(receive)
        elif key in first:
            pairing.twice.append((first[key], receive))
        else:
            unknown.append(receive)
    return explained, unknown


def _overtaking(sends: Sequence[Send], receives: Sequence[Receive], pairing: Pairing) -> list[int]:
    """Return the index of each receive's send where order is violated: the next send of that content, otherwise the
    first one left; -1 where none is."""
    unmatched: dict[tuple[int, str], list[int]] = defaultdict(list)
    for at, send in enumerate(sends):
        unmatched[send.size, send.digest].append(at)
    places: list[int] = []
    last = -1
    for receive in receives:
        if receive.error:
            some = sorted(at for key, some in unmatched.items() if key[0] > receive.size for at in some)
        else:
            some = unmatched[receive.came_size, receive.digest]
        if not some:
            places.append(-1)
            continue
        later = bisect_right(some, last)
        at = some[later if later < len(some) else 0]
        unmatched[sends[at].size, sends[at].digest].remove(at)
        if at < last:
            pairing.overtaken.append((sends[at], sends[last]))
        last = max(last, at)
        places.append(at)
    return places


def _change(
    sends: Sequence[Send],
    receives: Sequence[Receive],
    got: list[Receive | None],
    unknown: Sequence[Receive],
    pairing: Pairing,
) -> None:
    """Assign a receive whose content was not sent to the missing message at its position, as changed, if there is one.
    Fills in `got`."""
    position = {receive: at for at, receive in enumerate(got) if receive is not None}
    missing = deque(at for at, receive in enumerate(got) if receive is None)
    strange = set(unknown)
    last = -1
    for receive in receives:
        last = max(last, position.get(receive, -1))
        if receive not in strange:
            continue
        while missing and missing[0] < last:
            missing.popleft()
        if not missing:
            pairing.strangers.append(receive)
            continue
        at = missing.popleft()
        got[at] = receive
        pairing.changed.append((sends[at], receive))
