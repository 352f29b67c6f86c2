"""EMP's settings: what is refused."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import asdict

import pytest
from emp_talk import TIMEOUT

from protocols.emp.settings import Settings

WRONG = [
    ("unit", 0, "0 frames: 1 to 255"),
    ("unit", 256, "256 frames: 1 to 255"),
    ("unit", 2.0, r"unit 2\.0: a whole number"),
    ("timeout", 0, "0 ns: above 0, and at most 160000000 ns"),
    ("timeout", 160_000_001, "160000001 ns: above 0, and at most 160000000 ns"),
    ("timeout", 5e6, "a whole number"),
    ("longest_timeout", 4_999_999, "5000000 ns: above 0, and at most 4999999 ns"),
    ("longest_timeout", 2**62 + 1, f"at most {2**62} ns"),
    ("give_up", -1, "-1 ns: 0"),
    ("window", 0, "0 collections: 1 or more"),
    ("held", 0, "0 held headers: 1 to 65536"),
    ("held", 65_537, "65537 held headers: 1 to 65536"),
    ("descriptors", 0, "0 descriptors"),
    ("descriptors", 65_537, "65537 descriptors"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_what_cannot_be_is_refused_when_it_is_said_and_when_it_is_set(name: str, value: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**{name: value})
    settings = Settings()
    with pytest.raises(ValueError, match=said):
        setattr(settings, name, value)
    assert settings == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unit", 1), ("unit", 255), ("timeout", 1), ("timeout", 160_000_000), ("longest_timeout", TIMEOUT),
        ("longest_timeout", 2**62), ("give_up", 0), ("give_up", 10**12), ("window", 1), ("held", 1), ("held", 65_536),
    ],
)  # fmt: skip
def test_what_can_be_is_set_and_nothing_else_with_it(name: str, value: int) -> None:
    settings = Settings()
    setattr(settings, name, value)
    assert asdict(settings) == {**asdict(Settings()), name: value}
    assert settings == Settings(**{name: value})


def test_the_longest_time_out_makes_room_for_the_first() -> None:
    settings = Settings()
    settings.longest_timeout = 300_000_000
    settings.timeout = 200_000_000
    with pytest.raises(ValueError, match="200000000 ns: above 0, and at most 160000000 ns"):
        settings.longest_timeout = 160_000_000
    assert (settings.timeout, settings.longest_timeout) == (200_000_000, 300_000_000)


def test_descriptors_do_not_change() -> None:
    """Their memory is there when a NIC begins."""
    settings = Settings(descriptors=8)
    settings.descriptors = 8
    with pytest.raises(ValueError, match="9 descriptors: they do not change, and are 8"):
        settings.descriptors = 9
    assert settings.descriptors == 8


def test_a_setting_that_there_is_not_is_none() -> None:
    with pytest.raises(AttributeError):
        Settings().units = 4  # type: ignore[attr-defined]


def test_a_copy_is_as_good() -> None:
    settings = Settings(timeout=300_000_000, longest_timeout=400_000_000, unit=7)
    for other in (copy(settings), pickle.loads(pickle.dumps(settings))):
        assert other == settings
        with pytest.raises(ValueError, match="0 frames"):
            other.unit = 0
