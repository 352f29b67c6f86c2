"""/proc/net/softnet_stat in the formats of several kernels."""

from __future__ import annotations

import pytest

from testbed.kernel import softnet

OLD = """\
0000272d 0000000a 00000001 00000000 00000000 00000000 00000000 00000000 00000000
000034d9 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000
"""
RPS = """\
0000272d 0000000a 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000
000034d9 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000
"""
FLOW_LIMIT = """\
0000272d 0000000a 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
000034d9 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
"""
NUMBERED = """\
0000272d 0000000a 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000
000034d9 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001
"""
QUEUES = """\
0000272d 0000000a 00000006 00000000 00000000 00000000 00000000 00000000 00000000 000c76d2 00000000 00000000 00000000 00000000 00000000
000034d9 00000000 00000010 00000000 00000000 00000000 00000000 00000000 00000000 00001d01 00000000 00000000 00000001 00000000 00000000
"""  # noqa: E501  verbatim


@pytest.mark.parametrize("text", [OLD, RPS, FLOW_LIMIT, NUMBERED, QUEUES], ids=["9", "10", "11", "13", "15"])
def test_drops_are_the_second_column_of_every_processors_line(text: str) -> None:
    assert softnet.parse(text) == {0: 10, 1: 0}


def test_a_processor_that_is_offline_has_no_line_and_the_next_keeps_its_number() -> None:
    second_line = NUMBERED.splitlines()[1]
    assert softnet.parse(second_line) == {1: 0}


def test_the_increase_is_counted_by_processor() -> None:
    assert softnet.drops_between({0: 10, 1: 5}, {0: 10, 1: 5}) == 0
    assert softnet.drops_between({0: 10, 1: 5}, {0: 11, 1: 7}) == 3


def test_drops_are_counted_when_processors_go_offline_or_online() -> None:
    assert softnet.drops_between({0: 10, 1: 1_000}, {0: 12}) == 2
    assert softnet.drops_between({0: 10}, {0: 10, 1: 4}) == 4


def test_a_counter_that_wraps_around_has_increased() -> None:
    assert softnet.drops_between({0: 0xFFFF_FFFE}, {0: 1}) == 3


def test_the_format_of_this_kernel_is_parsed() -> None:
    first = softnet.read_drops()
    second = softnet.read_drops()
    assert first.keys() == second.keys()
    assert softnet.drops_between(first, second) < 1_000_000
