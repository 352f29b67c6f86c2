"""Reports of arbitrary rows, without warnings of the plotting library."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.observe.report.builder import page
from testbed.observe.report.run_summary import summarize_run
from tests.report.synthetic_runs import write_run

KEYS = ("node", "clock_ns", "size_bytes", "p50_ns", "min_ns", "p90_ns", "p99_ns", "p999_ns", "bandwidth_bit_s", "pattern",
        "requests", "each_ns", "work_ns", "trip_ns", "moved_bytes", "repeat", "clients")  # fmt: skip
NUMBERS = st.one_of(
    st.integers(0, 2**50),
    st.sampled_from([0, 1, 2**62, -1, 0.0, 0.5, -3.5, 1e300, math.nan, math.inf, -math.inf, 10**400]),
)
VALUES = st.one_of(NUMBERS, st.sampled_from(["x", "n1", None, True, [1]]))
ROWS = st.lists(st.sampled_from(KEYS), min_size=1, max_size=9, unique=True).flatmap(
    lambda keys: st.lists(
        st.fixed_dictionaries({key: VALUES if key in ("node", "pattern") else NUMBERS for key in keys}), max_size=45
    )
)


@settings(max_examples=20)
@given(rows=ROWS, more=ROWS)
def test_arbitrary_rows_have_a_page(tmp_path_factory: pytest.TempPathFactory, rows, more) -> None:
    folder: Path = tmp_path_factory.mktemp("arbitrary")
    html = page(
        [
            summarize_run(write_run(folder / "a", rows), "A"),
            summarize_run(write_run(folder / "b", more, mode="sim"), "B"),
        ]
    )
    assert html.endswith("</html>\n")
