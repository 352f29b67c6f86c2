"""Maps and programs of the kernel's BPF machine: creation and look-up by bpf(2).

A map or program exists as long as a file descriptor, a program or a filter refers to it. Failed calls raise OSError with the
operation.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal

from testbed.kernel.changes import announce

# Commands and types: the kernel's include/uapi/linux/bpf.h.
_MAP_CREATE, _MAP_LOOKUP_ELEM, _MAP_UPDATE_ELEM = 0, 1, 2
_PROG_LOAD: Final = 5
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD = 13, 14, 15
_MAP_LOOKUP_BATCH = 24
_MAP_TYPE_HASH, _MAP_TYPE_ARRAY = 1, 2
_PROG_TYPE_SCHED_CLS: Final = 3
_NO_PREALLOC: Final = 1

BPF_NOEXIST: Final = 1
"""Flag of an update: add a new key only."""

_SYSCALL_NUMBERS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_LOG_BYTES: Final = 1 << 20
_BATCH: Final = 1024  # entries read from a map by one call
_INFO_BYTES: Final = 256  # more than any kernel returns for a map or a program
_MAX_MAPS: Final = 64  # of one program

_MAP_INFO: Final = struct.Struct("=IIIIII16s")  # type, id, key and value size, maximum number of entries, flags, name
_PROGRAM_INFO: Final = struct.Struct("=II8sIIQQQIIQ16s")
"""Type, id, tag, lengths and addresses of the code (4), load time, uid, number of maps, address for their ids, name."""

_libc = ctypes.CDLL(None, use_errno=True)


class VerifierError(OSError):
    """The kernel's verifier rejects a program. log: the verifier's log."""

    def __init__(self, code: int, name: str, log: str) -> None:
        self.log = log
        last = [line for line in log.splitlines() if line and not line.startswith("processed ")][-3:]
        super().__init__(
            code, f"{os.strerror(code)}: the program {name!r}: {'; '.join(last) or 'the verifier gave no reason'}"
        )


def call(command: int, attributes: bytes | ctypes.Array[ctypes.c_char], operation: str) -> int:
    """Call bpf(2); return its result. attributes: a packed union bpf_attr, to which the kernel may write if it is an array.
    operation: for errors. Raises OSError."""
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"{operation}: the system call number of bpf(2) on {platform.machine()} is unknown")
    size = len(attributes)
    buffer = ctypes.create_string_buffer(attributes, size) if isinstance(attributes, bytes) else attributes
    result: int = _libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(size))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{operation}: {os.strerror(code)}")
    return result


@dataclass(slots=True)
class _OpenObject:
    """An open descriptor of a BPF object."""

    descriptor: int

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(slots=True)
class Map(_OpenObject):
    """A BPF map. Keys and values are bytes of fixed sizes; an array's keys are indexes from 0, in 4 bytes."""

    name: str
    key_size: int
    value_size: int
    max_entries: int

    def __enter__(self) -> Map:
        return self

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        value = ctypes.create_string_buffer(self.value_size)
        try:
            self._element(_MAP_LOOKUP_ELEM, key, ctypes.addressof(value), 0, "look up in")
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def update(self, key: bytes, value: bytes, flags: int = 0) -> None:
        """Set the value of a key. flags: BPF_NOEXIST or 0."""
        self._check(len(value) == self.value_size, "value")
        buffer = ctypes.create_string_buffer(value, self.value_size)
        self._element(_MAP_UPDATE_ELEM, key, ctypes.addressof(buffer), flags, "write to")
        announce(f"bpf update {self.name}")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all entries. Entries added during the iteration may be missing."""
        keys = ctypes.create_string_buffer(_BATCH * self.key_size)
        values = ctypes.create_string_buffer(_BATCH * self.value_size)
        cursor = ctypes.create_string_buffer(max(self.key_size, 4))
        started = finished = False
        batch = struct.Struct("=QQQQIIQQ")
        while not finished:
            cursor_address = ctypes.addressof(cursor)
            packed = batch.pack(
                cursor_address if started else 0, cursor_address, ctypes.addressof(keys), ctypes.addressof(values), _BATCH,
                self.descriptor, 0, 0,
            )  # fmt: skip
            attributes = ctypes.create_string_buffer(packed, batch.size)
            try:
                call(_MAP_LOOKUP_BATCH, attributes, f"read the map {self.name}")
            except OSError as error:
                if error.errno != errno.ENOENT:  # the last batch ends with ENOENT
                    raise
                finished = True
            started = True
            count: int = batch.unpack(attributes.raw)[4]
            raw_keys, raw_values = keys.raw, values.raw
            for i in range(count):
                yield (
                    raw_keys[i * self.key_size : (i + 1) * self.key_size],
                    raw_values[i * self.value_size : (i + 1) * self.value_size],
                )

    def _element(self, command: int, key: bytes, value: int, flags: int, operation: str) -> None:
        self._check(len(key) == self.key_size, "key")
        buffer = ctypes.create_string_buffer(key, self.key_size)
        attributes = struct.pack("=IxxxxQQQ", self.descriptor, ctypes.addressof(buffer), value, flags)
        call(command, attributes, f"{operation} the map {self.name}")

    def _check(self, fits: bool, what: str) -> None:
        if not fits:
            raise ValueError(f"{what} has the wrong size for the map {self.name}")


@dataclass(slots=True)
class LoadedProgram(_OpenObject):
    """An open program in the kernel. id: the kernel's. maps: ids of the maps that it uses."""

    id: int
    name: str
    maps: tuple[int, ...]

    def __enter__(self) -> LoadedProgram:
        return self


def make_map(kind: Literal["hash", "array"], name: str, key_size: int, value_size: int, max_entries: int) -> Map:
    """Create a map for up to `max_entries` entries. key_size, value_size: bytes.

    A hash map allocates entries when they are added; an array, whose keys have 4 bytes, allocates all at once.
    """
    number, flags = (_MAP_TYPE_HASH, _NO_PREALLOC) if kind == "hash" else (_MAP_TYPE_ARRAY, 0)
    attributes = struct.pack("=IIIIIII16s", number, key_size, value_size, max_entries, flags, 0, 0, _name(name))
    descriptor = call(_MAP_CREATE, attributes, f"make the map {name}")
    announce(f"bpf make map {name}")
    return Map(descriptor, name, key_size, value_size, max_entries)


def load_classifier(code: bytes, name: str) -> LoadedProgram:
    """Load a program for a traffic-control filter (BPF_PROG_TYPE_SCHED_CLS). code: see `bpf_assembler`.

    Raises VerifierError with the verifier's log, or OSError.
    """
    try:
        descriptor = _load(code, name)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES, errno.E2BIG):
            raise
        raise VerifierError(error.errno, name, _verifier_log(code, name)) from error
    announce(f"bpf load {name}")
    try:
        return _program_info(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _load(code: bytes, name: str, log: ctypes.Array[ctypes.c_char] | None = None) -> int:
    # Named, so that the buffers exist until the call returns.
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "=IIQQIIQII16s",
        _PROG_TYPE_SCHED_CLS,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        1 if log else 0,
        len(log) if log else 0,
        ctypes.addressof(log) if log else 0,
        0,
        0,
        _name(name),
    )
    return call(_PROG_LOAD, attributes, f"load the program {name}")


def _verifier_log(code: bytes, name: str) -> str:
    """Load a rejected program again to get the verifier's log."""
    log = ctypes.create_string_buffer(_LOG_BYTES)
    try:
        os.close(_load(code, name, log))
    except OSError:
        return log.value.decode(errors="replace")
    return ""


def program_by_id(program_id: int) -> LoadedProgram:
    """Open a loaded program by its id. Raises FileNotFoundError if there is none."""
    descriptor = call(_PROG_GET_FD_BY_ID, struct.pack("=III", program_id, 0, 0), f"open the program {program_id}")
    try:
        return _program_info(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def map_by_id(map_id: int) -> Map:
    """Open an existing map by its id. Raises FileNotFoundError if there is none."""
    descriptor = call(_MAP_GET_FD_BY_ID, struct.pack("=III", map_id, 0, 0), f"open the map {map_id}")
    try:
        info = ctypes.create_string_buffer(_INFO_BYTES)
        _get_info(descriptor, info)
        _, _, key_size, value_size, max_entries, _, name = _MAP_INFO.unpack_from(info)
        return Map(descriptor, name.rstrip(b"\0").decode(), key_size, value_size, max_entries)
    except BaseException:
        os.close(descriptor)
        raise


def _program_info(descriptor: int) -> LoadedProgram:
    map_ids = (ctypes.c_uint32 * _MAX_MAPS)()
    info = ctypes.create_string_buffer(_INFO_BYTES)
    _PROGRAM_INFO.pack_into(info, 0, 0, 0, b"", 0, 0, 0, 0, 0, 0, _MAX_MAPS, ctypes.addressof(map_ids), b"")
    _get_info(descriptor, info)
    fields = _PROGRAM_INFO.unpack_from(info)
    return LoadedProgram(descriptor, fields[1], fields[11].rstrip(b"\0").decode(), tuple(map_ids[: fields[9]]))


def _get_info(descriptor: int, info: ctypes.Array[ctypes.c_char]) -> None:
    attributes = struct.pack("=IIQ", descriptor, len(info), ctypes.addressof(info))
    call(_OBJ_GET_INFO_BY_FD, attributes, "get information on a BPF object")


def _name(name: str) -> bytes:
    """Encode an object's name, truncated to the kernel's limit of 15 characters (letters, digits, '_' and '.')."""
    return name.encode()[:15]
