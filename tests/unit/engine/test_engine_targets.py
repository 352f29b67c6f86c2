"""Targets computed from the rows of the engine benchmark, and the equality of the compared models."""

from collections.abc import Callable

import pytest

from benchmarks.engine import models
from benchmarks.engine.bench import PAIRS
from benchmarks.engine.targets import CALLBACKS, CHAIN, ENGINE, MIN, PING_PONG, SIMPY, TIME_OUTS, targets
from benchmarks.harness.rows import Row


def row(contender: str, measure: str, *samples: float) -> Row:
    return Row("engine", contender, measure, 0, "1/s", samples, {})


@pytest.mark.parametrize(("measure", "minimum"), MIN.items())
def test_a_rate_is_compared_with_simpys_of_the_same_round(measure: str, minimum: float) -> None:
    """In the last round the machine was three times slower."""
    for share, expected in ((1.01, True), (0.99, False)):
        ours = [minimum * share * rate for rate in (900.0, 1000.0, 300.0)]
        target_list = targets([row(ENGINE, measure, *ours), row(SIMPY, measure, 900.0, 1000.0, 300.0)])
        assert [target.reached for target in target_list if measure in target.name] == [expected]
        assert [target.reached for target in target_list if measure not in target.name] == [None] * 3


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_both_models_end_at_the_same_time(pair: tuple[Callable[[int], int], Callable[[int], int]]) -> None:
    ours, theirs = pair
    assert ours(2_000) == theirs(2_000) > 0


def test_a_chain_takes_the_time_of_its_slowest_server_and_of_one_pass() -> None:
    """Each customer passes once: the last server is the slowest, and is never idle after the first arrival."""
    costs = [models.COST + index for index in range(models.SERVERS)]
    assert models.servers(models.CONCURRENCY * models.SERVERS) == sum(costs) + (models.CONCURRENCY - 1) * max(costs)


def test_every_pair_has_a_target() -> None:
    assert set(PAIRS) == set(MIN) == {TIME_OUTS, CALLBACKS, PING_PONG, CHAIN}
