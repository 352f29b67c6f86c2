"""Targets of the collectives' benchmark, computed from its rows."""

import pytest

from benchmarks.collectives.measurements import BARRIER, PROTOCOLS
from benchmarks.collectives.targets import targets
from benchmarks.harness.rows import Row

CONTENDER = next(iter(PROTOCOLS))


def is_reached(times: dict[int, float]) -> bool | None:
    rows = [Row(BARRIER, CONTENDER, BARRIER, ranks, "s", (time,), {}) for ranks, time in times.items()]
    return next(target.reached for target in targets(rows) if CONTENDER in target.name)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({2: 10.0, 4: 20.0, 256: 80.0}, True),
        ({2: 10.0, 4: 21.9, 256: 73.0}, True),
        ({2: 10.0, 4: 22.1, 256: 80.0}, False),
        ({2: 10.0, 256: 100.0}, False),
        ({2: 10.0, 256: 10.0}, False),
        ({2: 10.0}, None),
        ({4: 10.0, 8: 15.0}, None),
    ],
)
def test_a_barriers_target_is_the_logarithm_of_the_number_of_ranks(
    times: dict[int, float], expected: bool | None
) -> None:
    assert is_reached(times) is expected
