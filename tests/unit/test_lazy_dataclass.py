"""Lazy dataclasses behave like those of `dataclasses`, and compile nothing before their first use."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from threading import Barrier
from typing import Any, ClassVar

import pytest

from testbed import lazy_dataclass


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Lazy:
    number: int
    text: str = "a"
    numbers: list[int] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    flag: bool = field(default=False, kw_only=True)
    shared: ClassVar[int] = 7

    @property
    def double(self) -> int:
        return 2 * self.number


@dataclasses.dataclass(frozen=True, slots=True)
class Eager:
    number: int
    text: str = "a"
    numbers: list[int] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    flag: bool = field(default=False, kw_only=True)
    shared: ClassVar[int] = 7

    @property
    def double(self) -> int:
        return 2 * self.number


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Derived(Lazy):
    number: int = 5
    last: tuple[int, ...] = ()


@lazy_dataclass.dataclass(slots=True)
class Mutable:
    count: int = 0
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = 2 * self.count


BOTH = pytest.mark.parametrize("cls", [Lazy, Eager])


@BOTH
def test_the_constructor_takes_positions_names_and_defaults(cls: Any) -> None:
    instance = cls(1, numbers=[2], flag=True)
    assert (instance.number, instance.text, instance.numbers, instance.note, instance.flag, instance.double) == (
        1,
        "a",
        [2],
        "",
        True,
        2,
    )
    assert cls(1).numbers is not cls(1).numbers
    for arguments, names in (((), {}), ((1, "b", [], "", True), {}), ((1,), {"other": 2})):
        with pytest.raises(TypeError):
            cls(*arguments, **names)


@BOTH
def test_equality_and_repr_skip_fields_excluded_from_them(cls: Any) -> None:
    assert cls(1, note="x") == cls(1, note="y")
    assert cls(1) != cls(2)
    assert cls(1) != (1, "a", [], False)
    assert repr(cls(1, note="x")) == f"{cls.__name__}(number=1, text='a', numbers=[], flag=False)"
    assert hash(cls(1, numbers=())) == hash(cls(1, numbers=(), note="x"))


@BOTH
def test_a_frozen_instance_rejects_changes(cls: Any) -> None:
    instance = cls(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.number = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del instance.number
    assert not hasattr(instance, "__dict__")


@BOTH
def test_instances_are_copied_pickled_replaced_and_matched(cls: Any) -> None:
    instance = cls(1, "b", [3])
    assert (
        instance
        == copy.deepcopy(instance)
        == pickle.loads(pickle.dumps(instance))
        == dataclasses.replace(instance, note="x")
    )
    assert dataclasses.asdict(instance) == {"number": 1, "text": "b", "numbers": [3], "note": "", "flag": False}
    assert [entry.name for entry in dataclasses.fields(cls)] == list(lazy_dataclass.fields_of(cls))
    match instance:
        case cls(1, text):
            assert text == "b"


def test_a_derived_class_has_the_fields_of_its_base_first_and_may_change_defaults() -> None:
    assert list(lazy_dataclass.fields_of(Derived)) == ["number", "text", "numbers", "note", "flag", "last"]
    assert Derived(last=(1,)) == Derived(5, last=(1,))
    assert dataclasses.replace(Derived(), number=3).number == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        Derived().text = "b"  # type: ignore[misc]


def test_an_unfrozen_instance_is_mutable_and_unhashable() -> None:
    instance = Mutable(2)
    instance.count = 3
    assert (instance.count, instance.total) == (3, 4)
    with pytest.raises(TypeError, match="unhashable"):
        hash(instance)


def test_threads_that_race_for_the_first_use_of_a_class_get_complete_instances() -> None:
    barrier = Barrier(8)

    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Fresh:
        numbers: list[int] = field(default_factory=list)

    def use_class(_: int) -> tuple[list[int], int]:
        barrier.wait()
        return Fresh().numbers, len(dataclasses.fields(Fresh))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use_class, range(8))) == [([], 1)] * 8


def test_a_class_that_defines_a_generated_method_is_rejected() -> None:
    with pytest.raises(TypeError, match="Own defines __eq__"):

        @lazy_dataclass.dataclass(frozen=True, slots=True)
        class Own:
            number: int

            def __eq__(self, other: object) -> bool:
                return True


def test_defining_a_class_compiles_nothing_and_using_it_compiles_once() -> None:
    program = """
from __future__ import annotations
import builtins, dataclasses
from testbed.lazy_dataclass import dataclass
run, compiled = builtins.exec, []
builtins.exec = lambda *arguments, **named: (compiled.append(arguments[0]), run(*arguments, **named))

@dataclass(frozen=True, slots=True)
class Lazy:
    number: int

counts = [len(compiled)]
assert Lazy(1) == Lazy(1) and repr(Lazy(1)) and hash(Lazy(1))
print(*counts, len(compiled))
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["0", "1"]
