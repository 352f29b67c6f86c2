"""BPF_PROG_TEST_RUN: run a BPF classifier on one frame, without an interface."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Final

from testbed.kernel import bpf

_PROG_TEST_RUN: Final = 10
_RUN: Final = struct.Struct("=IIIIQQIIIIQQIII4x")


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a test run. result: the program's return value, signed. duration: mean time per frame, ns."""

    result: int
    duration: int


def run_on(program: bpf.LoadedProgram, frame: bytes, repeat: int = 1) -> Run:
    """Run a classifier `repeat` times on a frame of at least 14 bytes; changes of maps persist."""
    data = ctypes.create_string_buffer(frame, len(frame))
    packed = _RUN.pack(program.descriptor, 0, len(frame), 0, ctypes.addressof(data), 0, repeat, *[0] * 8)
    attributes = ctypes.create_string_buffer(packed, _RUN.size)
    bpf.call(_PROG_TEST_RUN, attributes, f"run the program {program.name}")
    _, result, _, _, _, _, _, duration, *_ = _RUN.unpack(attributes.raw)
    return Run(result - (1 << 32) if result >> 31 else result, duration)
