"""The BPF assembler encodes instructions as specified, and the kernel executes them accordingly."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kernel import bpf
from testbed.kernel.bpf_assembler import R0, R1, R2, R3, R6, R10, Comparison, Program
from tests.unit.kernel.bpf_runs import run_on

MASK = 2**64 - 1
WORDS = st.one_of(st.integers(0, MASK), st.integers(0, 70), st.integers(MASK - 70, MASK))
FRAME = bytes(64)

ARITHMETIC: dict[str, tuple[Callable[[Program], Callable[..., None]], Callable[[int, int], int]]] = {
    "mov": (lambda program: program.mov, lambda _, right: right),
    "add": (lambda program: program.add, operator.add),
    "sub": (lambda program: program.sub, operator.sub),
    "mul": (lambda program: program.mul, operator.mul),
    "mod": (lambda program: program.mod, lambda left, right: left % right if right else left),
    "and": (lambda program: program.and_, operator.and_),
    "or": (lambda program: program.or_, operator.or_),
    "xor": (lambda program: program.xor, operator.xor),
}
SHIFTS: dict[str, tuple[Callable[[Program], Callable[..., None]], Callable[[int, int], int]]] = {
    "lsh": (lambda program: program.lsh, operator.lshift),
    "rsh": (lambda program: program.rsh, operator.rshift),
}
COMPARISONS: dict[Comparison, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def encode(build: Callable[[Program], object]) -> str:
    program = Program()
    build(program)
    return program.assemble({"table": 9}).hex(" ", 8)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda p: p.mov(R0, -1), "b7000000ffffffff"),
        (lambda p: p.mov(R6, R1), "bf16000000000000"),
        (lambda p: p.add(R1, 8), "0701000008000000"),
        (lambda p: p.mul(R2, R3), "2f32000000000000"),
        (lambda p: p.mod(R2, 10), "970200000a000000"),
        (lambda p: p.rsh(R1, 11), "770100000b000000"),
        (lambda p: p.xor(R1, R2), "af21000000000000"),
        (lambda p: p.big_endian(R1, 16), "dc01000010000000"),
        (lambda p: p.constant(R1, 0x9E3779B97F4A7C15), "18010000157c4a7f 00000000b979379e"),
        (lambda p: p.load(R1, R10, -8, 8), "79a1f8ff00000000"),
        (lambda p: p.load(R1, R6, 20, 4), "6161140000000000"),
        (lambda p: p.store(R10, -16, R1, 8), "7b1af0ff00000000"),
        (lambda p: p.store(R10, -16, 7, 1), "720af0ff07000000"),
        (lambda p: p.atomic_add(R1, 8, R2), "db21080000000000"),
        (lambda p: p.fetch_add(R1, 8, R2), "db21080001000000"),
        (lambda p: p.compare_exchange(R1, 0, R2), "db210000f1000000"),
        (lambda p: p.map(R1, "table"), "1811000009000000 0000000000000000"),
        (lambda p: p.map_value(R1, "table", 16), "1821000009000000 0000000010000000"),
        (lambda p: (p.jump("end"), p.exit(), p.label("end")), "0500010000000000 9500000000000000"),
        (lambda p: (p.label("top"), p.jump_if(R1, "<", 5, "top")), "a501ffff05000000"),
        (lambda p: (p.label("top"), p.jump_if(R1, ">=", R2, "top")), "3d21ffff00000000"),
        (lambda p: p.call(26), "850000001a000000"),
        (lambda p: p.exit(), "9500000000000000"),
    ],
)
def test_an_instruction_is_encoded_as_specified(build: Callable[[Program], object], expected: str) -> None:
    if struct.pack("=H", 1) != b"\1\0":
        pytest.skip("the expected bytes are little-endian")
    assert encode(build) == expected


def test_labels_are_resolved_in_both_directions_over_wide_constants() -> None:
    program = Program()
    program.label("top")
    program.constant(R1, 1)
    program.jump_if(R1, "==", 0, "end")
    program.jump("top")
    program.label("end")
    program.exit()
    code = program.assemble({})
    assert len(program) == 5
    assert [struct.unpack_from("=h", code, index * 8 + 2)[0] for index in (2, 3)] == [1, -4]


def test_invalid_constants_labels_and_jumps_are_rejected() -> None:
    program = Program()
    with pytest.raises(ValueError, match="load it with `constant`"):
        program.mov(R1, 1 << 31)
    with pytest.raises(ValueError, match="not an unsigned number of 64 bits"):
        program.constant(R1, 1 << 64)
    program.label("here")
    with pytest.raises(ValueError, match="label 'here' is defined twice"):
        program.label("here")
    program.jump("nowhere")
    with pytest.raises(ValueError, match="unknown label 'nowhere'"):
        program.assemble({})
    far_jump = Program()
    far_jump.jump("end")
    for _ in range(0x8000):
        far_jump.mov(R0, 0)
    far_jump.label("end")
    with pytest.raises(ValueError, match="too far"):
        far_jump.assemble({})


class Machine:
    """Kernel's BPF machine: runs programs that compute one word."""

    def __init__(self, result: bpf.Map) -> None:
        self._result = result

    def compute(self, build: Callable[[Program], object]) -> int:
        """Run the program and return R2."""
        program = Program()
        build(program)
        program.map_value(R1, "result")
        program.store(R1, 0, R2, 8)
        program.mov(R0, 0)
        program.exit()
        with bpf.load_classifier(program.assemble({"result": self._result.descriptor}), "computes") as loaded:
            run_on(loaded, FRAME)
        value = self._result.lookup(bytes(4))
        assert value is not None
        return int.from_bytes(value, "little" if struct.pack("=H", 1) == b"\1\0" else "big")


@pytest.fixture
def machine() -> Iterator[Machine]:
    with bpf.make_map("array", "result", 4, 8, 1) as result:
        yield Machine(result)


@pytest.mark.requires("bpf")
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_modulo_two_to_the_64(name: str, machine: Machine) -> None:
    choose, expected_result = ARITHMETIC[name]

    @given(WORDS, WORDS)
    def check_operation(left: int, right: int) -> None:
        def build(program: Program) -> None:
            program.constant(R2, left)
            program.constant(R3, right)
            choose(program)(R2, R3)

        assert machine.compute(build) == expected_result(left, right) & MASK

    check_operation()


@pytest.mark.requires("bpf")
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_insert_zeros(name: str, machine: Machine) -> None:
    choose, expected_result = SHIFTS[name]

    @given(WORDS, st.integers(0, 63))
    def check_operation(word: int, by: int) -> None:
        def build(program: Program) -> None:
            program.constant(R2, word)
            choose(program)(R2, by)

        assert machine.compute(build) == expected_result(word, by) & MASK

    check_operation()


@pytest.mark.requires("bpf")
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparisons_are_of_unsigned_numbers(comparison: Comparison, machine: Machine) -> None:
    @given(WORDS, st.one_of(WORDS, st.integers(-5, 5)), st.booleans())
    def check_operation(left: int, right: int, immediate: bool) -> None:
        immediate = immediate and -(2**31) <= right < 2**31

        def build(program: Program) -> None:
            program.constant(R3, left)
            program.constant(R6, right & MASK)
            program.mov(R2, 1)
            program.jump_if(R3, comparison, right if immediate else R6, "true")
            program.mov(R2, 0)
            program.label("true")

        assert machine.compute(build) == COMPARISONS[comparison](left, right & MASK)

    check_operation()


@pytest.mark.requires("bpf")
def test_bytes_in_network_order_become_numbers(machine: Machine) -> None:
    def build(program: Program) -> None:
        for offset, byte in enumerate(range(1, 9), -8):
            program.store(R10, offset, byte, 1)
        program.load(R2, R10, -8, 8)
        program.big_endian(R2, 64)
        program.load(R3, R10, -8, 2)
        program.big_endian(R3, 16)
        program.add(R2, R3)

    assert machine.compute(build) == 0x0102030405060708 + 0x0102


@pytest.mark.requires("bpf")
def test_atomic_operations_return_the_previous_value(machine: Machine) -> None:
    def build(program: Program) -> None:
        program.store(R10, -8, 40, 8)
        program.mov(R2, 2)
        program.atomic_add(R10, -8, R2)  # 42
        program.mov(R3, 100)
        program.fetch_add(R10, -8, R3)  # R3 = 42, memory 142
        program.mov(R0, 7)
        program.compare_exchange(R10, -8, R2)  # memory is not 7: R0 = 142
        program.mov(R6, R0)
        program.compare_exchange(R10, -8, R2)  # memory is 142: becomes 2
        program.load(R2, R10, -8, 8)
        program.mul(R2, 1_000)
        program.add(R2, R6)
        program.mul(R2, 1_000)
        program.add(R2, R3)

    assert machine.compute(build) == 2_142_042
