"""MPI's error classes, and the exception that carries one, with mpi4py's names."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from functools import total_ordering
from typing import Final, NamedTuple, NoReturn, Self

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL

# The numbers are MPICH's; the standard defines only the names.
SUCCESS: Final = 0
ERR_BUFFER: Final = 1
ERR_COUNT: Final = 2
ERR_TYPE: Final = 3
ERR_TAG: Final = 4
ERR_COMM: Final = 5
ERR_RANK: Final = 6
ERR_ROOT: Final = 7
ERR_GROUP: Final = 8
ERR_OP: Final = 9
ERR_TOPOLOGY: Final = 10
ERR_DIMS: Final = 11
ERR_ARG: Final = 12
ERR_UNKNOWN: Final = 13
ERR_TRUNCATE: Final = 14
ERR_OTHER: Final = 15
ERR_INTERN: Final = 16
ERR_IN_STATUS: Final = 17
ERR_PENDING: Final = 18
ERR_REQUEST: Final = 19
ERR_ACCESS: Final = 20
ERR_AMODE: Final = 21
ERR_BAD_FILE: Final = 22
ERR_CONVERSION: Final = 23
ERR_DUP_DATAREP: Final = 24
ERR_FILE_EXISTS: Final = 25
ERR_FILE_IN_USE: Final = 26
ERR_FILE: Final = 27
ERR_INFO: Final = 28
ERR_INFO_KEY: Final = 29
ERR_INFO_VALUE: Final = 30
ERR_INFO_NOKEY: Final = 31
ERR_IO: Final = 32
ERR_NAME: Final = 33
ERR_NO_MEM: Final = 34
ERR_NOT_SAME: Final = 35
ERR_NO_SPACE: Final = 36
ERR_NO_SUCH_FILE: Final = 37
ERR_PORT: Final = 38
ERR_QUOTA: Final = 39
ERR_READ_ONLY: Final = 40
ERR_SERVICE: Final = 41
ERR_SPAWN: Final = 42
ERR_UNSUPPORTED_DATAREP: Final = 43
ERR_UNSUPPORTED_OPERATION: Final = 44
ERR_WIN: Final = 45
ERR_BASE: Final = 46
ERR_LOCKTYPE: Final = 47
ERR_KEYVAL: Final = 48
ERR_RMA_CONFLICT: Final = 49
ERR_RMA_SYNC: Final = 50
ERR_SIZE: Final = 51
ERR_DISP: Final = 52
ERR_ASSERT: Final = 53
ERR_PROC_FAILED: Final = 101
"""The peer has crashed or restarted, or does not answer. MPI 4.1 has a class only for an aborted process
(MPI_ERR_PROC_ABORTED); the name is that of the fault-tolerance proposal ULFM (User-Level Failure Mitigation), which mpi4py
has, too."""
ERR_LASTCODE: Final = 0x3FFF_FFFF

_CLASS_STRINGS: Final = {
    ERR_BUFFER: "invalid buffer", ERR_COUNT: "invalid count", ERR_TYPE: "invalid datatype", ERR_TAG: "invalid tag",
    ERR_COMM: "invalid communicator", ERR_RANK: "invalid rank", ERR_ROOT: "invalid root", ERR_GROUP: "invalid group",
    ERR_OP: "invalid operation", ERR_TOPOLOGY: "invalid topology", ERR_DIMS: "invalid dimensions",
    ERR_ARG: "invalid argument", ERR_UNKNOWN: "unknown error", ERR_TRUNCATE: "message longer than the buffer",
    ERR_OTHER: "other error", ERR_INTERN: "internal error", ERR_IN_STATUS: "error code in a status",
    ERR_PENDING: "pending request", ERR_REQUEST: "invalid request", ERR_INFO: "invalid info",
    ERR_INFO_KEY: "invalid info key", ERR_INFO_VALUE: "invalid info value", ERR_INFO_NOKEY: "no such info key",
    ERR_NO_MEM: "out of memory", ERR_KEYVAL: "invalid attribute key", ERR_PROC_FAILED: "a process has failed",
}  # fmt: skip


class _SubsetMeta(type):
    """Metaclass of MPI's handles: raises an error with a hint for mpi4py's class attributes that this subset lacks."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise missing_attribute(cls, name)


class Handle(metaclass=_SubsetMeta):
    """Base class of MPI's handles. Access to an attribute that this subset of mpi4py lacks raises AttributeError with a
    hint."""

    __slots__ = ()

    def __new__(cls, *_: object, **__: object) -> Self:
        """Ignore the arguments of `__init__`, which subclasses in programs pass on, as in mpi4py."""
        return super().__new__(cls)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_attribute(type(self), name)


class MissingNameError(AttributeError):
    """Access to a name that this subset of mpi4py lacks."""

    is_caller_error: Final = True


def missing_attribute(cls: type, name: str) -> AttributeError:
    """Make the error for an attribute that a class lacks."""
    if name.startswith("_"):
        return AttributeError(f"{cls.__name__!r} has no attribute {name!r}")
    return missing_name(f"{cls.__name__}.{name}")


def missing_name(name: str) -> MissingNameError:
    """Make the error for a name of MPI that this subset lacks."""
    return MissingNameError(
        f"MPI has no attribute {name} (testbed implements a subset of mpi4py: docs/protocols/mpi.md)"
    )


def check_type(value: object, cls: type) -> None:
    """Check that an argument is a handle of a class. Raises TypeError."""
    if not isinstance(value, cls):
        article = "an" if cls.__name__[0] in "EIO" else "a"
        raise TypeError(f"{article} {cls.__name__} is expected, not {type(value).__name__}")


class Envelope(NamedTuple):
    """Envelope and size of a message. source: the sender's rank; of a send, the destination's. length: bytes."""

    source: int
    tag: int
    length: int


CANCELLED: Final = Envelope(ANY_SOURCE, ANY_TAG, 0)
"""Result of a cancelled transfer. Compare with `is`: an equal envelope may be a message's."""


PROC_NULL_ENVELOPE: Final = Envelope(PROC_NULL, ANY_TAG, 0)
"""Result of a transfer with PROC_NULL."""


@total_ordering
class MPIError(RuntimeError):
    """mpi4py's MPI.Exception: an invalid call, or a failed transfer. Comparisons compare its error code.

    envelope: envelope of the message, for a receive that failed after a message arrived; its length counts the bytes that
    are in the buffer. is_caller_error: its traceback ends with the program's line (`testbed.engine.tracebacks`).
    """

    is_caller_error: Final = True

    def __init__(self, error_class: int = SUCCESS, message: str = "", envelope: Envelope | None = None) -> None:
        """error_class: an error class, or an error code of the program's own. message: empty: the string of the class or
        code."""
        super().__init__(message or Get_error_string(error_class))
        self.error_class = Get_error_class(error_class)
        self.error_code = error_class
        self.envelope = envelope

    def __repr__(self) -> str:
        return f"MPI.Exception({self.error_code})"

    def __reduce__(self) -> tuple[type[MPIError], tuple[int, str, Envelope | None]]:
        return type(self), (self.error_code, str(self), self.envelope)

    def __int__(self) -> int:
        return self.error_code

    def __bool__(self) -> bool:
        return self.error_code != SUCCESS

    def __hash__(self) -> int:
        return hash(self.error_code)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, int | MPIError) and self.error_code == int(other)

    def __lt__(self, other: int | MPIError) -> bool:
        return self.error_code < int(other)

    @property
    def error_string(self) -> str:
        return str(self)

    def Get_error_class(self) -> int:
        return self.error_class

    def Get_error_code(self) -> int:
        return self.error_code

    def Get_error_string(self) -> str:
        return str(self)


class ArgumentTypeError(MPIError, TypeError):
    """An argument that is not a buffer. The second base class of this class and the following ones is the error that mpi4py
    raises in the same case."""


class ArgumentValueError(MPIError, ValueError):
    """Arguments whose sizes do not fit each other."""


class ArgumentBufferError(MPIError, BufferError):
    """A buffer that is not contiguous, or is read-only."""


class ArgumentKeyError(MPIError, KeyError):
    """A type of items for which there is no datatype."""

    __str__ = BaseException.__str__  # KeyError would put the message in quotation marks


_program_codes: dict[int, tuple[int, str]] = {}  # class and string of the program's own error classes and codes


def Get_error_class(errorcode: int) -> int:
    """Return an error code's class."""
    return _program_codes[errorcode][0] if errorcode in _program_codes else errorcode


def Get_error_string(errorcode: int) -> str:
    """Return the string of an error code."""
    if errorcode in _program_codes:
        return _program_codes[errorcode][1]
    return "no error" if errorcode == SUCCESS else _CLASS_STRINGS.get(errorcode, f"error {errorcode}")


def last_used_code() -> int:
    """Return the greatest error code (MPI_LASTUSEDCODE)."""
    return max(_program_codes, default=ERR_LASTCODE)


def Add_error_class() -> int:
    """Add an error class of the program's own; return it."""
    code = last_used_code() + 1
    _program_codes[code] = code, ""
    return code


def Add_error_code(errorclass: int) -> int:
    """Add an error code to a class; return it."""
    code = last_used_code() + 1
    _program_codes[code] = errorclass, ""
    return code


def Add_error_string(errorcode: int, string: str) -> None:
    """Set the string of an error code of the program's own. Raises MPIError (ERR_ARG) for a predefined or unknown code."""
    if errorcode not in _program_codes:
        raise MPIError(ERR_ARG, f"error code {errorcode} was not added by Add_error_class or Add_error_code")
    _program_codes[errorcode] = _program_codes[errorcode][0], string


def Remove_error_class(errorclass: int) -> None:
    """Remove an error class of the program's own. Raises MPIError (ERR_ARG) for another class, and for one that has a string
    or codes."""
    is_in_use = any(
        code != errorclass and error_class == errorclass for code, (error_class, _) in _program_codes.items()
    )
    if is_in_use or _program_codes.get(errorclass) != (errorclass, ""):
        raise MPIError(ERR_ARG, f"error class {errorclass} is not the program's own, or has a string or codes")
    del _program_codes[errorclass]


def Remove_error_code(errorcode: int) -> None:
    """Remove an error code of the program's own. Raises MPIError (ERR_ARG) for another code or a class, and for one that
    has a string."""
    error_class, string = _program_codes.get(errorcode, (errorcode, ""))
    if error_class == errorcode or string:
        raise MPIError(ERR_ARG, f"error code {errorcode} is not the program's own, or has a string")
    del _program_codes[errorcode]


def Remove_error_string(errorcode: int) -> None:
    """Remove the string of an error code of the program's own. Raises MPIError (ERR_ARG) for another code, and for one
    without a string."""
    error_class, string = _program_codes.get(errorcode, (errorcode, ""))
    if not string:
        raise MPIError(ERR_ARG, f"error code {errorcode} is not the program's own, or has no string")
    _program_codes[errorcode] = error_class, ""
