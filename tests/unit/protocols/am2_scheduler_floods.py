"""Random floods of the endpoint scheduler: an endpoint's waiting time while others always have messages to send."""

from __future__ import annotations

from random import Random

from protocols.am2.endpoint_scheduler import EndpointScheduler


def run(seed: int, steps: int = 2_000) -> int:
    """Return the longest wait, in packets of other endpoints. Raises AssertionError if it exceeds a turn of each of them."""
    rng = Random(seed)
    attempts = 1 << rng.randrange(5)
    names = [f"endpoint {number}" for number in range(2 + rng.randrange(6))]
    flooding = set(rng.sample(names, 1 + rng.randrange(len(names))))
    scheduler: EndpointScheduler[str] = EndpointScheduler(attempts)
    waits: dict[str, int] = {}
    longest_wait = 0
    for step in range(steps):
        for name in names:
            if name in flooding or rng.random() < 0.05:
                scheduler.add(name, step)
                waits.setdefault(name, 0)
        endpoint, slot = scheduler.take()
        if rng.random() < 0.5:
            scheduler.put_back(endpoint, slot)  # a partly sent bulk message
        for name in waits:
            waits[name] += name != endpoint
        waits[endpoint] = 0
        if endpoint not in scheduler.waiting_slots:
            del waits[endpoint]
        longest_wait = max(longest_wait, *waits.values(), 0) if waits else longest_wait
        max_wait = (len(names) - 1) * attempts
        assert longest_wait <= max_wait, (
            f"an endpoint of {len(names)} has waited for {longest_wait} packets of others: at most {max_wait}"
        )
    return longest_wait
