"""Which receive got which message.

A lane is what one sender sends to one receiver in one context under one tag. Its messages fit the same receives, and none
overtakes another: the receives that got them, in the order in which they were begun, got them in the order of their
sends. So both sequences are the same but for what was lost, came twice, was changed or overtook.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from testbed.controller.checkers.histories import Histories, Receive, Send


@dataclass(slots=True)
class Pairing:
    """pairs: a message and the receive that got it, whole. changed: got with another content. twice: got once more, by
    this receive. strangers: receives of what nobody had sent. overtaken: a message, and the later one that was received
    before it. missing: sent, and received by nobody; passed: those of them after which a later one of their lane was.
    """

    pairs: list[tuple[Send, Receive]] = field(default_factory=list)
    changed: list[tuple[Send, Receive]] = field(default_factory=list)
    twice: list[tuple[Send, Receive]] = field(default_factory=list)
    strangers: list[Receive] = field(default_factory=list)
    overtaken: list[tuple[Send, Send]] = field(default_factory=list)
    missing: list[Send] = field(default_factory=list)
    passed: set[Send] = field(default_factory=set)
    lanes: int = 0


def paired(histories: Histories) -> Pairing:
    """All messages of a run."""
    sent: dict[tuple[int, int, int, int], list[Send]] = defaultdict(list)
    came: dict[tuple[int, int, int, int], list[Receive]] = defaultdict(list)
    for sends in histories.sends:
        for send in sends:
            sent[send.rank, send.peer, send.context, send.tag].append(send)
    for receives in histories.receives:
        for receive in receives:
            if receive.source >= 0:
                came[receive.source, receive.rank, receive.context, receive.came_tag].append(receive)
    pairing = Pairing(lanes=len(sent))
    for lane in [*sent, *(lane for lane in came if lane not in sent)]:
        _pair(sent.get(lane, []), came.get(lane, []), pairing)
    return pairing


def _pair(sends: Sequence[Send], receives: Sequence[Receive], pairing: Pairing) -> None:
    """Of one lane."""
    if len(sends) == len(receives) and all(map(_same, sends, receives)):
        pairing.pairs.extend(zip(sends, receives, strict=True))
        return
    places: dict[tuple[int, str], list[int]] = defaultdict(list)  # of a content, those that nobody has received yet
    first: dict[tuple[int, str], Send] = {}
    for at, send in enumerate(sends):
        places[send.size, send.digest].append(at)
        first.setdefault((send.size, send.digest), send)
    open_ = [True] * len(sends)
    unknown: list[tuple[int, Receive]] = []  # and which message was received before it
    last = -1
    for receive in receives:
        if receive.error:  # cut off: its content is not known, only that it was too long
            at = next((at for at in range(last + 1, len(sends)) if open_[at] and sends[at].size > receive.size), -1)
            if at < 0:
                unknown.append((last, receive))
                continue
            places[sends[at].size, sends[at].digest].remove(at)
        else:
            key = (receive.came_size, receive.digest)
            left = places.get(key)
            if not left:
                if key in first:
                    pairing.twice.append((first[key], receive))
                else:
                    unknown.append((last, receive))
                continue
            later = bisect_right(left, last)
            at = left.pop(later if later < len(left) else 0)
        open_[at] = False
        if at < last:
            pairing.overtaken.append((sends[at], sends[last]))
        last = max(last, at)
        pairing.pairs.append((sends[at], receive))
    for send, receive in _changed(sends, open_, unknown, pairing):
        pairing.changed.append((send, receive))
    for at, send in enumerate(sends):
        if open_[at]:
            pairing.missing.append(send)
            if at < last:
                pairing.passed.add(send)


def _changed(
    sends: Sequence[Send], open_: list[bool], unknown: Sequence[tuple[int, Receive]], pairing: Pairing
) -> Iterator[tuple[Send, Receive]]:
    """A content that nobody has sent is taken for the one that lacks at its place, if one does."""
    lacking = deque(at for at in range(len(sends)) if open_[at])
    for before, receive in unknown:
        while lacking and lacking[0] < before:
            lacking.popleft()
        if not lacking:
            pairing.strangers.append(receive)
            continue
        at = lacking.popleft()
        open_[at] = False
        yield sends[at], receive


def _same(send: Send, receive: Receive) -> bool:
    return send.digest == receive.digest and send.size == receive.came_size
