"""Match receives to messages.

A channel is the sequence of messages from one sender to one receiver in one context with one tag. The same receives match
them, and none overtakes another: receives, in the order in which they were posted, get messages in the order of their
sends. So both sequences are equal except for messages that were lost, duplicated, changed or overtaken. This also holds
across restarts, as a restarted program sends and receives later than before the restart.
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
    """Matches of all channels.

    pairs: messages, each with the receive that got it intact, or truncated to its buffer. changed: messages, each with the
    receive that got it with another content. duplicates: messages, each with a further receive that got it. unsent:
    receives of a message that was not sent, or was sent less often than it was received. overtaken: messages, each with a
    later one that was received before it. missing: messages that were not received, each with the receive of the next
    received message of its channel and of the same life of its sender; None if no later message was received.
    """

    pairs: list[tuple[Send, Receive]] = field(default_factory=list)
    changed: list[tuple[Send, Receive]] = field(default_factory=list)
    duplicates: list[tuple[Send, Receive]] = field(default_factory=list)
    unsent: list[Receive] = field(default_factory=list)
    overtaken: list[tuple[Send, Send]] = field(default_factory=list)
    missing: list[tuple[Send, Receive | None]] = field(default_factory=list)


def match_messages(histories: Histories, costs: Callable[[Sequence[Send]], list[int]]) -> Pairing:
    """Match all messages of a run. costs: costs of leaving each message of a channel without a receive, see `alignment`."""
    sent: dict[tuple[int, int, int, int], list[Send]] = defaultdict(list)
    received: dict[tuple[int, int, int, int], list[Receive]] = defaultdict(list)
    for sends in histories.sends:
        for send in sends:
            sent[send.rank, send.peer, send.context, send.tag].append(send)
    for receives in histories.receives:
        for receive in receives:
            if receive.source >= 0:
                received[receive.source, receive.rank, receive.context, receive.received_tag].append(receive)
    pairing = Pairing()
    for channel in [*sent, *(channel for channel in received if channel not in sent)]:
        _match_channel(sent.get(channel, []), received.get(channel, []), costs, pairing)
    return pairing


def _match_channel(
    sends: Sequence[Send], receives: Sequence[Receive], costs: Callable[[Sequence[Send]], list[int]], pairing: Pairing
) -> None:
    """Match the messages of one channel."""
    if len(sends) == len(receives) and all(map(fits, sends, receives)):
        pairing.pairs.extend(zip(sends, receives, strict=True))
        return
    recognized, unrecognized = _split_by_content(sends, receives, pairing)
    indices = align(sends, recognized, costs(sends))
    if indices is None:
        indices = _match_out_of_order(sends, recognized, pairing)
        unrecognized += [receive for receive, index in zip(recognized, indices, strict=True) if index < 0]
    receive_of: list[Receive | None] = [None] * len(sends)
    for receive, index in zip(recognized, indices, strict=True):
        if index >= 0:
            receive_of[index] = receive
            pairing.pairs.append((sends[index], receive))
    if unrecognized:
        _match_changed(sends, receives, receive_of, unrecognized, pairing)
    missing: list[tuple[Send, Receive | None]] = []
    following: Receive | None = None
    life = -1
    for send, matched in zip(reversed(sends), reversed(receive_of), strict=True):
        if send.life != life:
            following, life = None, send.life
        if matched is None:
            missing.append((send, following))
        else:
            following = matched
    pairing.missing += reversed(missing)


def _split_by_content(
    sends: Sequence[Send], receives: Sequence[Receive], pairing: Pairing
) -> tuple[list[Receive], list[Receive]]:
    """Return the receives of contents that were sent, each at most as often as it was sent, and the receives of contents
    that were not sent. Append further receives of a content to `pairing.duplicates`. A receive with an error has no
    content; it counts as one of a content that was sent if any message of the channel is longer than its buffer."""
    unmatched = Counter((send.size, send.digest) for send in sends)
    first: dict[tuple[int, str], Send] = {}
    for send in sends:
        first.setdefault((send.size, send.digest), send)
    longest = max((send.size for send in sends), default=-1)
    recognized: list[Receive] = []
    unrecognized: list[Receive] = []
    for receive in receives:
        key = (receive.received_size, receive.digest)
        if receive.error:
            (recognized if longest > receive.size else unrecognized).append(receive)
        elif unmatched[key]:
            unmatched[key] -= 1
            recognized.append(receive)
        elif key in first:
            pairing.duplicates.append((first[key], receive))
        else:
            unrecognized.append(receive)
    return recognized, unrecognized


def _match_out_of_order(sends: Sequence[Send], receives: Sequence[Receive], pairing: Pairing) -> list[int]:
    """Match a channel whose order is violated. Return the index of each receive's send: the next unmatched send of that
    content, otherwise the first one; -1 if there is none. For a truncated receive, all unmatched sends longer than its
    buffer are candidates. Append overtaken messages to `pairing.overtaken`."""
    unmatched: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index, send in enumerate(sends):
        unmatched[send.size, send.digest].append(index)
    indices: list[int] = []
    last = -1
    for receive in receives:
        if receive.error:
            candidates = sorted(
                index for key, of_content in unmatched.items() if key[0] > receive.size for index in of_content
            )
        else:
            candidates = unmatched[receive.received_size, receive.digest]
        if not candidates:
            indices.append(-1)
            continue
        later = bisect_right(candidates, last)
        index = candidates[later if later < len(candidates) else 0]
        unmatched[sends[index].size, sends[index].digest].remove(index)
        if index < last:
            pairing.overtaken.append((sends[index], sends[last]))
        last = max(last, index)
        indices.append(index)
    return indices


def _match_changed(
    sends: Sequence[Send],
    receives: Sequence[Receive],
    receive_of: list[Receive | None],
    unrecognized: Sequence[Receive],
    pairing: Pairing,
) -> None:
    """Assign each receive whose content was not sent to the missing message at its position, as changed; without one,
    append it to `pairing.unsent`. Fill in `receive_of`.

    The position is after the last message received before. It is also before the next message received, unless contents
    repeat or messages were truncated: then other matches are possible, which leave other messages missing."""
    position = {receive: index for index, receive in enumerate(receive_of) if receive is not None}
    missing = deque(index for index, receive in enumerate(receive_of) if receive is None)
    unrecognized_receives = set(unrecognized)
    contents = {(send.size, send.digest) for send in sends}
    limits = [len(sends)] * len(receives)
    if len(contents) == len(sends) and not any(receive.error for receive in receives):
        for index in range(len(receives) - 1, 0, -1):
            limits[index - 1] = position.get(receives[index], limits[index])
    last = -1
    for receive, limit in zip(receives, limits, strict=True):
        last = max(last, position.get(receive, -1))
        if receive not in unrecognized_receives:
            continue
        while missing and missing[0] < last:
            missing.popleft()
        if not missing or last < limit < missing[0]:
            pairing.unsent.append(receive)
            continue
        index = missing.popleft()
        receive_of[index] = receive
        pairing.changed.append((sends[index], receive))
