"""MPI's reduction operations, predefined and the program's own, on buffers and on objects. MPI 4.1, section 6.9.

Buffers are combined by NumPy, which is loaded when the first one is.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from protocols.mpi.buffers import Message, typed
from protocols.mpi.datatypes import PAIRS, Datatype
from protocols.mpi.mpi_errors import ERR_COUNT, ERR_OP, Handle, MPIError

if TYPE_CHECKING:
    import numpy as np

OnObjects = Callable[[Any, Any], Any]
"""(left, right) -> combined value."""
OnBuffers = Callable[[memoryview, memoryview, Datatype], object]
"""(left, right, datatype): writes the combined items into `right`, as MPI's user functions do."""


class Op(Handle):
    """An operation, associative. `op(x, y)` combines two objects. name: MPI's. commutes: operands may change places."""

    __slots__ = ("__weakref__", "_on_buffers", "_on_objects", "commutes", "is_predefined", "name")

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self, op: Op | None = None) -> None:
        """op: another handle of the same operation; without one it is OP_NULL."""
        if op is not None and not isinstance(op, Op):
            raise TypeError(f"an Op is expected, not {type(op).__name__}")
        self.name: str = op.name if op is not None else "MPI_OP_NULL"
        self.commutes: bool = op.commutes if op is not None else False
        self.is_predefined: bool = op.is_predefined if op is not None else True
        self._on_objects: OnObjects | None = op._on_objects if op is not None else _refused
        self._on_buffers: OnBuffers = op._on_buffers if op is not None else _refused

    @classmethod
    def of(
        cls, name: str, on_objects: OnObjects, on_buffers: OnBuffers, commutes: bool = True, predefined: bool = False
    ) -> Op:
        """Make an operation of functions; for the library."""
        op = cls()
        op.name, op.commutes, op.is_predefined = name, commutes, predefined
        op._on_objects, op._on_buffers = on_objects, on_buffers
        return op

    @classmethod
    def Create(cls, function: Callable[..., Any], commute: bool = False) -> Op:
        """Make an operation of ``function(inbuf, inoutbuf, datatype)``, which combines into the second buffer; for objects,
        of which the datatype is None, it returns the combined one. The first operand is of the lower ranks."""

        def on_objects(left: Any, right: Any) -> Any:
            return function(left, right, None)

        return cls.of(getattr(function, "__name__", "a function"), on_objects, function, commute)

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[object, ...]]:
        """Pickle a predefined operation by its name, and another one as its function."""
        return (_named, (self.name,)) if self.is_predefined else (Op.Create, (self._on_buffers, self.commutes))

    def Free(self) -> None:
        """Free the operation. Raises MPIError (ERR_OP) for a predefined one."""
        if self.is_predefined:
            raise MPIError(ERR_OP, f"{self.name} is MPI's own and cannot be freed")
        self._on_objects = None

    def Is_commutative(self) -> bool:
        return self.commutes

    @property
    def is_commutative(self) -> bool:
        return self.commutes

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def __bool__(self) -> bool:
        """Whether it is not OP_NULL."""
        return self._on_objects not in (None, _refused)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Op):
            return False
        return self._on_objects is other._on_objects or not (self or other)

    def __call__(self, left: Any, right: Any) -> Any:
        if self._on_objects is None:
            raise MPIError(ERR_OP, f"the operation {self.name} was freed")
        return self._on_objects(left, right)

    def Reduce_local(self, inbuf: Message, inoutbuf: Message) -> None:
        """Combine two buffers of this rank into the second."""
        data, datatype = typed(inoutbuf, True)
        left = typed(inbuf, False)[0]
        if len(left) != len(data):
            raise MPIError(ERR_COUNT, f"buffers of {len(left)} and {len(data)} bytes")
        self.combine(left, data, datatype)

    def combine(self, left: memoryview, right: memoryview, datatype: Datatype) -> None:
        """Write ``left op right`` into `right`. Raises MPIError (ERR_OP) for a datatype that the operation is not
        defined for, and the exceptions of a program's function."""
        if self._on_objects is None:
            raise MPIError(ERR_OP, f"the operation {self.name} was freed")
        if right:
            self._on_buffers(left, right, datatype)


def _dtype(datatype: Datatype) -> np.dtype[Any]:
    try:
        import numpy as np
    except ImportError:
        raise MPIError(
            ERR_OP, "reductions of buffers need NumPy: pip install numpy; lower-case calls reduce objects without it"
        ) from None
    if datatype.typecode in PAIRS:
        return np.dtype([("value", datatype.typecode[0]), ("index", datatype.typecode[1])], align=True)
    return np.dtype(datatype.typecode)


def _ufunc(name: str, ufunc: str) -> OnBuffers:
    """Return the function that applies one of NumPy's to buffers. name: MPI's."""

    def apply(left: memoryview, right: memoryview, datatype: Datatype) -> None:
        if not datatype.typecode or datatype.typecode in (*PAIRS, "c"):
            raise MPIError(ERR_OP, f"{name} is not defined for {datatype.name}")
        dtype = _dtype(datatype)
        import numpy as np

        ours = np.frombuffer(right, dtype)
        with np.errstate(all="ignore"):  # as C's arithmetic
            try:
                getattr(np, ufunc)(
                    np.frombuffer(left, dtype), ours, out=ours, casting="same_kind" if ufunc[:3] != "log" else "unsafe"
                )
            except TypeError:
                raise MPIError(ERR_OP, f"{name} is not defined for {datatype.name}") from None

    return apply


def _located(name: str, wins: str) -> OnBuffers:
    """Return the function for MAXLOC or MINLOC. wins: NumPy's comparison that the better value passes."""

    def apply(left: memoryview, right: memoryview, datatype: Datatype) -> None:
        if datatype.typecode not in PAIRS:
            raise MPIError(ERR_OP, f"{name} is not defined for {datatype.name}: it needs pairs such as DOUBLE_INT")
        dtype = _dtype(datatype)
        import numpy as np

        theirs, ours = np.frombuffer(left, dtype), np.frombuffer(right, dtype)
        equal = theirs["value"] == ours["value"]
        taken = getattr(np, wins)(theirs["value"], ours["value"]) | (equal & (theirs["index"] < ours["index"]))
        ours[taken] = theirs[taken]

    return apply


def _maxloc(left: Any, right: Any) -> Any:
    (value, index), (other, its_index) = left, right
    is_right = other > value or (not value > other and its_index < index)
    return (other, its_index) if is_right else (value, index)


def _minloc(left: Any, right: Any) -> Any:
    (value, index), (other, its_index) = left, right
    is_right = other < value or (not value < other and its_index < index)
    return (other, its_index) if is_right else (value, index)


def _refused(*_: object) -> object:
    raise MPIError(ERR_OP, "MPI_REPLACE, MPI_NO_OP and MPI_OP_NULL reduce no buffers")


def _predefined(name: str, on_objects: OnObjects, ufunc: str) -> Op:
    return Op.of(f"MPI_{name}", on_objects, _ufunc(name, ufunc), predefined=True)


MAX: Final = _predefined("MAX", max, "maximum")
MIN: Final = _predefined("MIN", min, "minimum")
SUM: Final = _predefined("SUM", operator.add, "add")
PROD: Final = _predefined("PROD", operator.mul, "multiply")
LAND: Final = _predefined("LAND", lambda left, right: bool(left) & bool(right), "logical_and")
LOR: Final = _predefined("LOR", lambda left, right: bool(left) | bool(right), "logical_or")
LXOR: Final = _predefined("LXOR", lambda left, right: bool(left) ^ bool(right), "logical_xor")
BAND: Final = _predefined("BAND", operator.and_, "bitwise_and")
BOR: Final = _predefined("BOR", operator.or_, "bitwise_or")
BXOR: Final = _predefined("BXOR", operator.xor, "bitwise_xor")
MAXLOC: Final = Op.of("MPI_MAXLOC", _maxloc, _located("MAXLOC", "greater"), predefined=True)
MINLOC: Final = Op.of("MPI_MINLOC", _minloc, _located("MINLOC", "less"), predefined=True)
REPLACE: Final = Op.of("MPI_REPLACE", lambda _left, right: right, _refused, predefined=True)
NO_OP: Final = Op.of("MPI_NO_OP", lambda left, _right: left, _refused, predefined=True)
OP_NULL: Final = Op()


def _named(name: str) -> Op:
    """Return a predefined operation, for pickling."""
    return next(op for op in _PREDEFINED if op.name == name)


_PREDEFINED: Final = (MAX, MIN, SUM, PROD, LAND, LOR, LXOR, BAND, BOR, BXOR, MAXLOC, MINLOC, REPLACE, NO_OP, OP_NULL)
