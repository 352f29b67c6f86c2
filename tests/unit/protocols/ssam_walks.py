"""Random walks of two nodes with SSAM: requests both ways while cells are lost, duplicated and overrun the FIFOs.

At the end the fibre loses nothing: every request must have been handled once, in order, and answered; every window must be
free; and every cell that arrived at an interface must be counted.
"""

from __future__ import annotations

from random import Random

from protocols.ssam.settings import Settings
from tests.unit.protocols.ssam_pair import ADDRESSES, COUNT, ECHO, Pair

REQUESTS = 60


def trial(seed: int) -> None:
    """Run the walk of a seed. Raises AssertionError for a violation."""
    rng = Random(seed)
    window, loss = rng.choice((1, 2, 5, 32)), rng.choice((0.0, 0.1, 0.3))
    pair = Pair(settings=Settings(window=window, input_fifo=rng.choice((3, 292))))
    duplicates: list[bytes] = []
    arrived = [0, 0]

    def destination_of(frame: bytes) -> int:
        return next(number for number in (0, 1) if ADDRESSES[number] == frame[:6])

    def lose_or_duplicate(frame: bytes) -> bool:
        if rng.random() < loss:
            duplicates.append(frame)
        is_lost = rng.random() < loss
        arrived[destination_of(frame)] += not is_lost
        return is_lost

    pair.is_lost = lose_or_duplicate
    sent: list[list[bytes]] = [[], []]
    for number in range(REQUESTS):
        for index, node in enumerate(pair.nodes):
            data = bytes((index, number))
            if node.library.try_request(1 - index, rng.choice((ECHO, COUNT)), data):
                sent[index].append(data)
        if rng.random() < 0.5:
            pair.settle(timeouts=rng.randrange(2))
        while duplicates and rng.random() < 0.5:
            frame = duplicates.pop()
            arrived[destination_of(frame)] += 1
            pair.nodes[destination_of(frame)].device.receive(pair.nodes[destination_of(frame)].now, frame)
    loss = 0.0
    pair.settle(timeouts=40)
    for index, node in enumerate(pair.nodes):
        counted = pair.nodes[1 - index].counted
        assert sorted(node.echoed + counted) == sent[index], f"requests of node {index} are lost or handled twice"
        assert counted == sorted(counted), f"requests of node {index} are handled out of order"
        assert not node.library.pending_work(), f"node {index} has pending work"
        accepted = 0
        while accepted < window and node.library.try_request(1 - index, COUNT):
            accepted += 1
        assert accepted == window, f"{accepted} of {window} slots of node {index}'s window are free"
        counts = node.device.counter_values()
        cells = counts["cells_read"] + counts["overruns"] + counts["bad_headers"]
        assert cells == arrived[index], f"{arrived[index]} cells arrived at node {index}, and {cells} are accounted for"
