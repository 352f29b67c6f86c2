"""Targets and tables of the collectives' benchmark, computed from its rows."""

from io import StringIO

import pytest
from rich.console import Console

from benchmarks.collectives.bench import SIZES, table
from benchmarks.collectives.measurements import BARRIER, PROTOCOLS, SIMULATED, volume_of
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
def test_a_barrier_may_grow_with_the_logarithm_of_the_number_of_ranks(
    times: dict[int, float], expected: bool | None
) -> None:
    assert is_reached(times) is expected


def test_a_table_lists_omitted_calls_with_the_data_they_would_move() -> None:
    sizes, volume = [int(size) for size in SIZES.split(",")], 512 << 20
    rows = [
        Row(SIMULATED, CONTENDER, call, 256, "s", (0.001,), {"size_bytes": size})
        for call in ("Allreduce", "Alltoall")
        for size in sizes
        if volume_of(call, 256, size) <= volume
    ]
    console = Console(width=100, file=StringIO())

    def text(call: str) -> str:
        with console.capture() as capture:
            console.print(table(rows, SIMULATED, 256, call, sizes, volume))
        return capture.get()

    allreduce, alltoall = text("Allreduce"), text("Alltoall")
    assert allreduce.count("1 ms") == len(sizes)
    assert "left out" not in allreduce
    cells = [line.split("│")[1:3] for line in alltoall.splitlines() if line.startswith("│")]
    assert [(size.strip(), cell.strip()) for size, cell in cells][-4:] == [
        ("4KiB", "1 ms"), ("32KiB", "left out: 1.99 GiB"), ("256KiB", "left out: 15.9 GiB"), ("1MiB", "left out: 63.8 GiB"),
    ]  # fmt: skip
    assert "left out: a call moves more than 512MiB (--volume) in one process" in " ".join(alltoall.split())
