"""Runs of a BPF classifier on single frames, without an interface."""

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
    """A test run of a program. result: its return value, signed. duration: ns for one frame, the mean of all repeats."""

    result: int
    duration: int


def run_on(program: bpf.LoadedProgram, frame: bytes, repeat: int = 1) -> Run:
    """Run a classifier on a frame (14 bytes at least); its changes to maps stay."""
    data = ctypes.create_string_buffer(frame, len(frame))
    packed = _RUN.pack(program.descriptor, 0, len(frame), 0, ctypes.addressof(data), 0, repeat, *[0] * 8)
    attributes = ctypes.create_string_buffer(packed, _RUN.size)
    bpf.call(_PROG_TEST_RUN, attributes, f"run the program {program.name}")
    _, result, _, _, _, _, _, duration, *_ = _RUN.unpack(attributes.raw)
    return Run(result - (1 << 32) if result >> 31 else result, duration)
