"""Random floods of the endpoint scheduler: how long an endpoint waits while others have ever more to send."""

from __future__ import annotations

from random import Random

from protocols.am2.turns import Turns


def run(seed: int, steps: int = 2_000) -> int:
    """The longest wait, in packets of others. AssertionError where it is more than (endpoints - 1) x 2^k."""
    random = Random(seed)
    attempts = 1 << random.randrange(5)
    names = [f"endpoint {number}" for number in range(2 + random.randrange(6))]
    flooding = set(random.sample(names, 1 + random.randrange(len(names))))
    turns: Turns[str] = Turns(attempts)
    waits: dict[str, int] = {}
    longest = 0
    for step in range(steps):
        for name in names:
            if name in flooding or random.random() < 0.05:
                turns.add(name, step)
                waits.setdefault(name, 0)
        taken, slot = turns.take()
        if random.random() < 0.5:
            turns.put_back(taken, slot)  # a bulk message, of which a part is sent
        for name in waits:
            waits[name] += name != taken
        waits[taken] = 0
        if taken not in turns.waiting:
            del waits[taken]
        longest = max(longest, *waits.values(), 0) if waits else longest
        most = (len(names) - 1) * attempts
        assert longest <= most, (
            f"an endpoint of {len(names)} has waited for {longest} packets of others: at most {most}"
        )
    return longest
