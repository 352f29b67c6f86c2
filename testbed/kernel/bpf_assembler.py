"""Assembler for the kernel's BPF machine; no compiler is needed.

There are eleven registers of 64 bits: a call clobbers R1 to R5 and preserves R6 to R9; R10 points to the end of the
program's stack of 512 bytes. Most methods of `Program` append one operation. Operations refer to labels and maps by
name; `assemble` fills in the offsets and file descriptors. Instructions are encoded as in RFC 9669, "BPF Instruction
Set Architecture"; maps and helper functions are those of the kernel's include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias


class Register(Enum):
    """A register. R0 holds the result of a call and of the program."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = Register

Operand: TypeAlias = "Register | int"
"""The right operand of an operation: a register, or a signed 32-bit number."""

Size = Literal[1, 2, 4, 8]
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]
"""Comparison of unsigned 64-bit numbers."""

_ENCODING: Final = struct.Struct("=BBhi")  # opcode, registers (source in the upper half), offset, immediate

# Classes of instructions: RFC 9669, section 3.
_LD, _LDX, _ST, _STX, _ALU, _JMP, _ALU64 = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x07
_FROM_REGISTER: Final = 0x08
_MEMORY, _ATOMIC, _CONSTANT64 = 0x60, 0xC0, 0x18
_SIZES: Final[dict[int, int]] = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_OPERATIONS: Final = {
    "add": 0x00, "sub": 0x10, "mul": 0x20, "or": 0x40, "and": 0x50, "lsh": 0x60, "rsh": 0x70, "mod": 0x90, "xor": 0xA0,
    "mov": 0xB0,
}  # fmt: skip
_COMPARISONS: Final = {"==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
_CALL, _EXIT = 0x85, 0x95
_TO_BIG_ENDIAN: Final = 0xDC
_FETCH: Final = 0x01
_COMPARE_EXCHANGE: Final = 0xF0 | _FETCH
# Kinds of 64-bit constants, encoded as source register: a number, BPF_PSEUDO_MAP_FD and BPF_PSEUDO_MAP_VALUE.
_PLAIN, _MAP, _MAP_VALUE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. label: target of the jump, instead of `offset`. map_name: the map whose descriptor replaces
    `immediate`."""

    opcode: int
    destination: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    label: str = ""
    map_name: str = ""


def _operation(name: str) -> Callable[[Program, Register, Operand], None]:
    opcode = _ALU64 | _OPERATIONS[name]

    def append(program: Program, to: Register, operand: Operand) -> None:
        if isinstance(operand, Register):
            program.append(Instruction(opcode | _FROM_REGISTER, to.value, operand.value))
        else:
            program.append(Instruction(opcode, to.value, immediate=_check_immediate(operand)))

    return append


class Program:
    """A program under construction."""

    __slots__ = ("_instructions", "_label_count", "_labels")

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._labels: dict[str, int] = {}
        self._label_count = 0

    def __len__(self) -> int:
        return len(self._instructions)

    def new_label(self, hint: str) -> str:
        """Return an unused name for a label. hint: its beginning."""
        self._label_count += 1
        return f"{hint}.{self._label_count}"

    def label(self, name: str) -> None:
        """Place a label before the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name!r} is defined twice")
        self._labels[name] = len(self._instructions)

    def assemble(self, maps: Mapping[str, int]) -> bytes:
        """Encode the program. maps: name -> file descriptor. Raises ValueError for an unknown label or too long a jump,
        KeyError for an unknown map."""
        code = bytearray()
        for index, instruction in enumerate(self._instructions):
            offset = self._distance(index, instruction.label) if instruction.label else instruction.offset
            immediate = maps[instruction.map_name] if instruction.map_name else instruction.immediate
            registers = instruction.source << 4 | instruction.destination
            code += _ENCODING.pack(instruction.opcode, registers, offset, immediate)
        return bytes(code)

    def _distance(self, index: int, label: str) -> int:
        if label not in self._labels:
            raise ValueError(f"unknown label {label!r}")
        distance = self._labels[label] - index - 1
        if not -0x8000 <= distance < 0x8000:
            raise ValueError(f"label {label!r} is {distance} instructions away, too far for a jump")
        return distance

    # Arithmetic: to = to OPERATION operand, modulo 2^64. A negative number is sign-extended.

    mov = _operation("mov")
    add = _operation("add")
    sub = _operation("sub")
    mul = _operation("mul")
    mod = _operation("mod")  # the remainder of unsigned numbers
    and_ = _operation("and")
    or_ = _operation("or")
    xor = _operation("xor")
    lsh = _operation("lsh")
    rsh = _operation("rsh")  # as an unsigned number

    def big_endian(self, to: Register, bits: Literal[16, 32, 64]) -> None:
        """Convert the lowest `bits` bits from network order; the bits above become 0."""
        self.append(Instruction(_TO_BIG_ENDIAN, to.value, immediate=bits))

    def constant(self, to: Register, number: int) -> None:
        """Load an unsigned number of 64 bits."""
        if not 0 <= number < 1 << 64:
            raise ValueError(f"{number} is not an unsigned number of 64 bits")
        self._wide(to, _PLAIN, _signed(number & 0xFFFF_FFFF), _signed(number >> 32))

    # Memory: the address is base + offset.

    def load(self, to: Register, base: Register, offset: int, size: Size) -> None:
        """Load from memory, zero-extended."""
        self.append(Instruction(_LDX | _SIZES[size] | _MEMORY, to.value, base.value, offset))

    def store(self, base: Register, offset: int, operand: Operand, size: Size) -> None:
        """Store to memory; a number is sign-extended."""
        if isinstance(operand, Register):
            self.append(Instruction(_STX | _SIZES[size] | _MEMORY, base.value, operand.value, offset))
        else:
            self.append(Instruction(_ST | _SIZES[size] | _MEMORY, base.value, 0, offset, _check_immediate(operand)))

    def atomic_add(self, base: Register, offset: int, operand: Register) -> None:
        """Add atomically to a 64-bit number in memory."""
        self.append(Instruction(_STX | _SIZES[8] | _ATOMIC, base.value, operand.value, offset))

    def fetch_add(self, base: Register, offset: int, operand: Register) -> None:
        """Add atomically to a 64-bit number in memory; operand becomes the previous number."""
        self.append(Instruction(_STX | _SIZES[8] | _ATOMIC, base.value, operand.value, offset, _FETCH))

    def compare_exchange(self, base: Register, offset: int, new: Register) -> None:
        """Replace the 64-bit number in memory by `new` if it equals R0. R0 becomes the previous number."""
        self.append(Instruction(_STX | _SIZES[8] | _ATOMIC, base.value, new.value, offset, _COMPARE_EXCHANGE))

    # Maps

    def map(self, to: Register, name: str) -> None:
        """Load the address of a map, for helper functions."""
        self._wide(to, _MAP, 0, 0, name)

    def map_value(self, to: Register, name: str, offset: int = 0) -> None:
        """Load an address within the only value of an array."""
        self._wide(to, _MAP_VALUE, 0, offset, name)

    # Control flow

    def jump(self, label: str) -> None:
        self.append(Instruction(_JMP, label=label))

    def jump_if(self, left: Register, comparison: Comparison, right: Operand, label: str) -> None:
        """Jump if the unsigned comparison holds; a negative number is sign-extended to 64 bits first."""
        opcode = _JMP | _COMPARISONS[comparison]
        if isinstance(right, Register):
            self.append(Instruction(opcode | _FROM_REGISTER, left.value, right.value, label=label))
        else:
            self.append(Instruction(opcode, left.value, immediate=_check_immediate(right), label=label))

    def call(self, helper: int) -> None:
        """Call a helper function of the kernel by its number: arguments in R1 to R5, result in R0."""
        self.append(Instruction(_CALL, immediate=helper))

    def exit(self) -> None:
        self.append(Instruction(_EXIT))

    def _wide(self, to: Register, constant_kind: int, low: int, high: int, map_name: str = "") -> None:
        """Append a constant of 64 bits, which takes two instructions."""
        self.append(Instruction(_CONSTANT64, to.value, constant_kind, immediate=low, map_name=map_name))
        self.append(Instruction(0, immediate=high))

    def append(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _check_immediate(number: int) -> int:
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{number} is not a signed 32-bit number: load it with `constant`")
    return number
