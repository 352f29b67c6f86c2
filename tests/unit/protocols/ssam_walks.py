"""Random walks of two nodes with SSAM: requests both ways while cells are lost, repeated and overrun the FIFOs.

At the end the fibre is sound: every request must have been handled once and in order, and answered; every window must be
free; and every cell that has come to an interface is accounted for.
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
    pair = Pair(own=Settings(window=window, input_fifo=random.choice((3, 292))))
    repeated: list[bytes] = []
    arrived = [0, 0]

    def to(frame: bytes) -> int:
        return next(number for number in (0, 1) if ADDRESSES[number] == frame[:6])

    def lose(frame: bytes) -> bool:
        if random.random() < loss:
            repeated.append(frame)
        lost = random.random() < loss
        arrived[to(frame)] += not lost
        return lost

    pair.lose = lose
    sent: list[list[bytes]] = [[], []]
    for number in range(REQUESTS):
        for local, node in enumerate(pair.nodes):
            data = bytes((local, number))
            if node.library.try_request(1 - local, random.choice((ECHO, COUNT)), data):
                sent[local].append(data)
        if random.random() < 0.5:
            pair.settle(time_outs=random.randrange(2))
        while repeated and random.random() < 0.5:
            frame = repeated.pop()
            arrived[to(frame)] += 1
            pair.nodes[to(frame)].device.receive(pair.nodes[to(frame)].now, frame)
    loss = 0.0
    pair.settle(time_outs=40)
    for local, node in enumerate(pair.nodes):
        counted = pair.nodes[1 - local].counted
        assert sorted(node.echoed + counted) == sent[local], f"requests of node {local} are lost or handled again"
        assert counted == sorted(counted), f"requests of node {local} are handled out of order"
        assert not node.library.pending_work(), f"node {local} waits"
        free = 0
        while free < window and node.library.try_request(1 - local, COUNT):
            free += 1
        assert free == window, f"{free} of {window} slots of node {local}'s window are free"
        counts = node.device.counter_values()
        cells = counts["cells_read"] + counts["overruns"] + counts["bad_headers"]
        assert cells == arrived[local], f"{arrived[local]} cells came to node {local}, and {cells} are accounted for"
