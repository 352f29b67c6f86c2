"""BPF maps and programs: entries, lookup by id, and the verifier's message on a rejected program."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator

import pytest

from testbed.kernel import bpf
from testbed.kernel.bpf_assembler import R0, R1, R2, Program
from testbed.kernel.changes import observed_by
from tests.unit.kernel.bpf_runs import run_on

pytestmark = pytest.mark.requires("bpf")


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


@pytest.fixture
def table() -> Iterator[bpf.Map]:
    with bpf.make_map("hash", "table", 8, 16, 5_000) as map_:
        yield map_


@pytest.fixture(autouse=True, scope="module")
def _collect_garbage_of_earlier_tests() -> None:
    """Close descriptors that earlier tests leaked now, not while this module compares descriptors."""
    gc.collect()


@pytest.fixture(autouse=True)
def _no_descriptor_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def program_returning(result: int) -> bytes:
    program = Program()
    program.mov(R0, result)
    program.exit()
    return program.assemble({})


def test_an_entry_is_added_once_and_can_be_changed(table: bpf.Map) -> None:
    assert table.lookup(number(1)) is None
    table.update(number(1), number(10, 16), bpf.BPF_NOEXIST)
    with pytest.raises(FileExistsError, match="the map table"):
        table.update(number(1), number(11, 16), bpf.BPF_NOEXIST)
    assert table.lookup(number(1)) == number(10, 16)
    table.update(number(1), number(12, 16))
    assert table.lookup(number(1)) == number(12, 16)


@pytest.mark.parametrize("entries", [0, 1, 1023, 1024, 1025, 5_000])
def test_all_entries_are_read_in_batches(table: bpf.Map, entries: int) -> None:
    for key in range(entries):
        table.update(number(key), number(key * 3, 16))
    entries_read = list(table.items())
    assert len(entries_read) == entries
    assert dict(entries_read) == {number(key): number(key * 3, 16) for key in range(entries)}


def test_a_full_table_is_an_error() -> None:
    with bpf.make_map("hash", "small", 8, 8, 2) as small_map:
        for key in range(2):
            small_map.update(number(key), number(0))
        with pytest.raises(OSError, match="the map small") as caught:
            small_map.update(number(2), number(0))
        assert caught.value.errno == errno.E2BIG


def test_keys_and_values_of_a_wrong_size_are_rejected_before_the_system_call(table: bpf.Map) -> None:
    with pytest.raises(ValueError, match="key"):
        table.lookup(b"1")
    with pytest.raises(ValueError, match="value"):
        table.update(number(1), b"1")


def test_a_program_and_its_maps_are_found_by_id() -> None:
    program = Program()
    program.map_value(R1, "words", 8)
    program.load(R0, R1, 0, 4)
    program.exit()
    with (
        bpf.make_map("array", "words", 4, 16, 1) as words_map,
        bpf.load_classifier(program.assemble({"words": words_map.descriptor}), "reads") as loaded,
        bpf.program_by_id(loaded.id) as found_program,
        bpf.map_by_id(*found_program.maps) as found_map,
    ):
        assert (found_program.id, found_program.name, found_program.maps) == (loaded.id, "reads", loaded.maps)
        assert (found_map.name, found_map.key_size, found_map.value_size, found_map.max_entries) == ("words", 4, 16, 1)
        found_map.update(number(0, 4), number(5) + number(77))
        assert run_on(found_program, bytes(64)).result == 77
        assert list(words_map.items()) == [(number(0, 4), number(5) + number(77))]


def test_an_unknown_id_is_not_found() -> None:
    with pytest.raises(FileNotFoundError, match="open the program"):
        bpf.program_by_id(2**31 - 1)
    with pytest.raises(FileNotFoundError, match="open the map"):
        bpf.map_by_id(2**31 - 1)


@pytest.mark.parametrize("result", [0, 2, -1])
def test_a_run_returns_the_programs_result(result: int) -> None:
    with bpf.load_classifier(program_returning(result), "returns") as loaded:
        run = run_on(loaded, bytes(14), repeat=100)
        assert run.result == result
        assert run.duration < 1_000_000


def test_a_rejected_program_is_reported_with_the_verifiers_message() -> None:
    program = Program()
    program.load(R0, R2, 0, 8)  # R2 is uninitialized
    program.exit()
    with pytest.raises(bpf.VerifierError, match=r"'broken'.*R2 !read_ok") as caught:
        bpf.load_classifier(program.assemble({}), "broken")
    assert "R2 !read_ok" in caught.value.log


def test_system_calls_that_change_the_kernel_are_observed_and_queries_are_not() -> None:
    changes: list[str] = []
    with (
        observed_by(changes.append),
        bpf.make_map("hash", "table", 8, 8, 2) as table,
        bpf.load_classifier(program_returning(0), "p") as loaded,
    ):
        table.update(number(1), number(2))
        table.lookup(number(1))
        list(table.items())
        bpf.program_by_id(loaded.id).close()
    assert changes == ["bpf make map table", "bpf load p", "bpf update table"]
