"""Random walks of two nodes with SSAM: requests both ways while cells are lost, repeated and overrun the FIFOs.

At the end the fibre is sound: every request must have been handled once and in order, and answered; every window must be
free; and every cell that has arrived at an interface is accounted for.
"""

from __future__ import annotations

from random import Random

from protocols.ssam.settings import Settings
from tests.unit.protocols.ssam_pair import ADDRESSES, COUNT, ECHO, Pair

REQUESTS = 60


def trial(seed: int) -> None:
    """Walk. Raises AssertionError."""
    random = Random(seed)
    window, loss = random.choice((1, 2, 5, 32)), random.choice((0.0, 0.1, 0.3))
    pair = Pair(settings=Settings(window=window, input_fifo=random.choice((3, 292))))
    repeated: list[bytes] = []
    arrived = [0, 0]

    def destination_of(frame: bytes) -> int:
        return next(number for number in (0, 1) if ADDRESSES[number] == frame[:6])

    def lose(frame: bytes) -> bool:
        if random.random() < loss:
            repeated.append(frame)
        is_lost = random.random() < loss
        arrived[destination_of(frame)] += not is_lost
        return is_lost

    pair.lose = lose
    sent: list[list[bytes]] = [[], []]
    for number in range(REQUESTS):
        for index, node in enumerate(pair.nodes):
            data = bytes((index, number))
            if node.library.try_request(1 - index, random.choice((ECHO, COUNT)), data):
                sent[index].append(data)
        if random.random() < 0.5:
            pair.settle(time_outs=random.randrange(2))
        while repeated and random.random() < 0.5:
            frame = repeated.pop()
            arrived[destination_of(frame)] += 1
            pair.nodes[destination_of(frame)].device.receive(pair.nodes[destination_of(frame)].now, frame)
    loss = 0.0
    pair.settle(time_outs=40)
    for index, node in enumerate(pair.nodes):
        counters = pair.nodes[1 - index].counted
        assert sorted(node.echoed + counters) == sent[index], f"requests of node {index} are lost or handled again"
        assert counters == sorted(counters), f"requests of node {index} are handled out of order"
        assert not node.library.pending_work(), f"node {index} waits"
        free_slots = 0
        while free_slots < window and node.library.try_request(1 - index, COUNT):
            free_slots += 1
        assert free_slots == window, f"{free_slots} of {window} slots of node {index}'s window are free"
        counts = node.device.counter_values()
        cells = counts["cells_read"] + counts["overruns"] + counts["bad_headers"]
        assert cells == arrived[index], f"{arrived[index]} cells arrived at node {index}, and {cells} are accounted for"
