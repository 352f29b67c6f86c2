"""Tables of the rows of a run."""

from __future__ import annotations

import pytest

from testbed.cli.table_layout import print_rows


def test_rows_with_equal_keys_in_any_order_share_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([
        {"node": "n1", "sent": 1, "handled": 2, "rank": 0},
        {"node": "n2", "handled": 4, "sent": 3},
        {"node": "n3", "size_bytes": 8},
    ])  # fmt: skip
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["node", "sent", "handled"],
        ["n1", "1", "2"],
        ["n2", "3", "4"],
        ["node", "size"],
        ["n3", "8", "B"],
    ]
