"""Random floods of the endpoint scheduler: an endpoint's waiting time while others always have messages to send."""

from __future__ import annotations

from random import Random

from protocols.am2.endpoint_scheduler import EndpointScheduler


def run(seed: int, steps: int = 2_000) -> int:
    """Return the longest wait, in packets of others. Raises AssertionError if it is more than (endpoints - 1) x 2^k."""
    random = Random(seed)
    attempts = 1 << random.randrange(5)
    names = [f"endpoint {number}" for number in range(2 + random.randrange(6))]
    flooding = set(random.sample(names, 1 + random.randrange(len(names))))
    scheduler: EndpointScheduler[str] = EndpointScheduler(attempts)
    waits: dict[str, int] = {}
    longest_wait = 0
    for step in range(steps):
        for name in names:
            if name in flooding or random.random() < 0.05:
                scheduler.add(name, step)
                waits.setdefault(name, 0)
        endpoint, slot = scheduler.take()
        if random.random() < 0.5:
            scheduler.put_back(endpoint, slot)  # a bulk message, of which a part is sent
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
