"""Random schedules of EMP: its settings and sizes drawn as well."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random

from protocols.core.completion import Completion
from protocols.emp.descriptors import ANY_SOURCE
from protocols.emp.host import ANY_TAG, DescriptorsExhaustedError, EmpError, Endpoint, TruncatedError, plug
from protocols.emp.settings import Settings
from tests.unit.protocols.random_schedules import Delivered, Library, Schedule


def truncated(completion: Completion[Delivered]) -> Delivered | None:
    try:
        completion.result()
    except TruncatedError as error:
        return error.received
    return None


LIBRARY = Library(ANY_SOURCE, ANY_TAG, truncated)


class ChangingUnits(Schedule):
    """Schedule whose hosts change the frames per collection. changes: number of changes by hosts with sends in progress. The
    changes are drawn from a generator of their own, so that all other draws are those of the plain schedule."""

    def __init__(self, seed: int, settings: Settings, sizes: Sequence[int], count: int, mtu: int) -> None:
        super().__init__(seed, plug(settings), LIBRARY, sizes, count, mtu)
        self.changes = 0
        self._units = Random(f"units {seed}")

    def _step(self) -> bool:
        has_events = super()._step()
        if has_events and self._units.random() < 0.2:
            host = self._units.choice([agent.host for agent in self.wires.agents])
            assert isinstance(host, Endpoint)
            try:
                assert host.post_unit(self._units.choice([1, 2, 3, 4, 7])).done
            except DescriptorsExhaustedError:
                return has_events
            self.changes += any(not send.done and message.source == host.number for message, send in self._sends)
        return has_events


def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = Random(f"EMP {seed}")
    settings = Settings(unit=rng.choice([1, 2, 3, 7]), window=rng.choice([1, 2, 16]))
    mtu = rng.choice([100, 1500, 9000])
    full_payload = mtu - 28
    edges = [
        0,
        full_payload - 16,
        full_payload - 15,
        3 * full_payload - 16,
        3 * full_payload - 15,
        4096,
        4097,
        7 * 4096,
        7 * 4096 + 1,
    ]
    sizes = [1, 4, *rng.sample(edges, 3)]
    count = rng.choice([2, 2, 3, 5])
    if rng.random() < 0.5:
        return ChangingUnits(seed, settings, sizes, count, mtu)
    return Schedule(seed, plug(settings), LIBRARY, sizes, count, mtu)


def run(seed: int) -> Schedule:
    """Run the schedule of a seed. Raises AssertionError for a violation; a failed transfer is one, too."""
    case = schedule(seed)
    try:
        case.run()
    except EmpError as error:
        raise AssertionError(f"a transfer fails: {error}") from error
    return case


if __name__ == "__main__":
    sys.stdout.write(run(int(sys.argv[1])).digest.hexdigest())
