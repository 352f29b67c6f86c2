"""MPI's reduction operations, predefined and user-defined, on buffers and on objects. MPI 4.1, section 6.9.

NumPy combines buffers; it is imported at the first such reduction.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from protocols.mpi.buffers import Message, reduction_operand
from protocols.mpi.datatypes import PAIRS, Datatype
from protocols.mpi.mpi_errors import ERR_COUNT, ERR_OP, Handle, MPIError

if TYPE_CHECKING:
    import numpy as np

ObjectFunction = Callable[[Any, Any], Any]
"""(left, right) -> combined value."""
BufferFunction = Callable[[memoryview, memoryview, Datatype], object]
"""(left, right, datatype); writes the combined items to `right`, as MPI's user-defined functions do."""


class Op(Handle):
    """An associative operation. ``op(x, y)`` combines two objects. name: MPI's. commutes: whether it is commutative."""

    __slots__ = ("__weakref__", "_buffer_function", "_object_function", "commutes", "is_predefined", "name")

    __hash__ = None  # type: ignore[assignment]  # mutable: `Free` makes it OP_NULL

    def __init__(self, op: Op | None = None) -> None:
        """op: an operation, of which this becomes another handle; None: OP_NULL."""
        if op is not None and not isinstance(op, Op):
            raise TypeError(f"an Op is expected, not {type(op).__name__}")
        self.name: str = op.name if op is not None else "MPI_OP_NULL"
        self.commutes: bool = op.commutes if op is not None else False
        self.is_predefined: bool = op.is_predefined if op is not None else True
        self._object_function: ObjectFunction | None = op._object_function if op is not None else _undefined_on_buffers
        self._buffer_function: BufferFunction = op._buffer_function if op is not None else _undefined_on_buffers

    @classmethod
    def from_functions(
        cls,
        name: str,
        object_function: ObjectFunction,
        buffer_function: BufferFunction,
        commutes: bool = True,
        predefined: bool = False,
    ) -> Op:
        """Make an operation from its two functions; called by the library."""
        op = cls()
        op.name, op.commutes, op.is_predefined = name, commutes, predefined
        op._object_function, op._buffer_function = object_function, buffer_function
        return op

    @classmethod
    def Create(cls, function: Callable[..., Any], commute: bool = False) -> Op:
        """Make an operation from ``function(inbuf, inoutbuf, datatype)``, which writes the result to the second buffer. For
        objects the function is called with datatype None, and returns the combined object. The first operand is that of the
        lower ranks. commute: whether the operation is commutative."""

        def object_function(left: Any, right: Any) -> Any:
            return function(left, right, None)

        return cls.from_functions(getattr(function, "__name__", "a function"), object_function, function, commute)

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[object, ...]]:
        """Pickle a predefined operation by its name, and a user-defined one with its function."""
        return (
            (_predefined_operation, (self.name,))
            if self.is_predefined
            else (Op.Create, (self._buffer_function, self.commutes))
        )

    def Free(self) -> None:
        """Free the operation. Raises MPIError (ERR_OP) for a predefined one."""
        if self.is_predefined:
            raise MPIError(ERR_OP, f"the predefined operation {self.name} cannot be freed")
        self._object_function = None

    def Is_commutative(self) -> bool:
        return self.commutes

    @property
    def is_commutative(self) -> bool:
        return self.commutes

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def __bool__(self) -> bool:
        """Whether it is not OP_NULL."""
        return self._object_function not in (None, _undefined_on_buffers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Op):
            return False
        return self._object_function is other._object_function or not (self or other)

    def __call__(self, left: Any, right: Any) -> Any:
        if self._object_function is None:
            raise MPIError(ERR_OP, f"the operation {self.name} was freed")
        if not self:
            raise ValueError("MPI_OP_NULL cannot combine objects")  # mpi4py's exception
        return self._object_function(left, right)

    def Reduce_local(self, inbuf: Message, inoutbuf: Message) -> None:
        """Combine two buffers of this rank; the second becomes the result."""
        data, datatype = reduction_operand(inoutbuf, True)
        left = reduction_operand(inbuf, False)[0]
        if len(left) != len(data):
            raise MPIError(ERR_COUNT, f"both buffers must have one size, got {len(left)} and {len(data)} bytes")
        self.combine(left, data, datatype)

    def check(self, datatype: Datatype) -> None:
        """Raise MPIError (ERR_OP) if the operation was freed, or is predefined and not defined for the datatype."""
        if self.is_predefined or self._object_function is None:
            item = memoryview(bytearray(2 * datatype.extent))
            self.combine(item[: datatype.extent], item[datatype.extent :], datatype)

    def combine(self, left: memoryview, right: memoryview, datatype: Datatype) -> None:
        """Write ``left op right`` to `right`. Raises MPIError (ERR_OP) for a datatype for which the operation is not
        defined, and the exceptions of a user-defined function."""
        if self._object_function is None:
            raise MPIError(ERR_OP, f"the operation {self.name} was freed")
        if right:
            self._buffer_function(left, right, datatype)


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


def _ufunc_function(name: str, ufunc: str) -> BufferFunction:
    """Return a function that applies a NumPy ufunc to buffers. name: MPI's, for errors. ufunc: NumPy's name."""

    def apply(left: memoryview, right: memoryview, datatype: Datatype) -> None:
        if not datatype.typecode or datatype.typecode in (*PAIRS, "c"):
            raise MPIError(ERR_OP, f"{name} is not defined for {datatype.name}")
        dtype = _dtype(datatype)
        import numpy as np

        result = np.frombuffer(right, dtype)
        with np.errstate(all="ignore"):  # as C's arithmetic
            try:
                getattr(np, ufunc)(
                    np.frombuffer(left, dtype),
                    result,
                    out=result,
                    casting="same_kind" if ufunc[:3] != "log" else "unsafe",
                )
            except TypeError:
                raise MPIError(ERR_OP, f"{name} is not defined for {datatype.name}") from None

    return apply


def _location_function(name: str, comparison: str) -> BufferFunction:
    """Return the function of MAXLOC or MINLOC. comparison: NumPy's name of the comparison by which a value is chosen: the
    chosen value compared with the other one gives True."""

    def apply(left: memoryview, right: memoryview, datatype: Datatype) -> None:
        if datatype.typecode not in PAIRS:
            raise MPIError(ERR_OP, f"{name} is not defined for {datatype.name}: it needs pairs such as DOUBLE_INT")
        dtype = _dtype(datatype)
        import numpy as np

        left_pairs, right_pairs = np.frombuffer(left, dtype), np.frombuffer(right, dtype)
        equal = left_pairs["value"] == right_pairs["value"]
        is_left = getattr(np, comparison)(left_pairs["value"], right_pairs["value"]) | (
            equal & (left_pairs["index"] < right_pairs["index"])
        )
        right_pairs[is_left] = left_pairs[is_left]

    return apply


def _maxloc(left: Any, right: Any) -> Any:
    (left_value, left_index), (right_value, right_index) = left, right
    is_right = right_value > left_value or (not left_value > right_value and right_index < left_index)
    return (right_value, right_index) if is_right else (left_value, left_index)


def _minloc(left: Any, right: Any) -> Any:
    (left_value, left_index), (right_value, right_index) = left, right
    is_right = right_value < left_value or (not left_value < right_value and right_index < left_index)
    return (right_value, right_index) if is_right else (left_value, left_index)


def _undefined_on_buffers(*_: object) -> object:
    raise MPIError(ERR_OP, "MPI_REPLACE, MPI_NO_OP and MPI_OP_NULL cannot reduce buffers")


def _predefined(name: str, object_function: ObjectFunction, ufunc: str) -> Op:
    return Op.from_functions(f"MPI_{name}", object_function, _ufunc_function(name, ufunc), predefined=True)


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
MAXLOC: Final = Op.from_functions("MPI_MAXLOC", _maxloc, _location_function("MAXLOC", "greater"), predefined=True)
MINLOC: Final = Op.from_functions("MPI_MINLOC", _minloc, _location_function("MINLOC", "less"), predefined=True)
REPLACE: Final = Op.from_functions("MPI_REPLACE", lambda _left, right: right, _undefined_on_buffers, predefined=True)
NO_OP: Final = Op.from_functions("MPI_NO_OP", lambda left, _right: left, _undefined_on_buffers, predefined=True)
OP_NULL: Final = Op()


def _predefined_operation(name: str) -> Op:
    """Return a predefined operation; unpickling calls it."""
    return next(op for op in _PREDEFINED if op.name == name)


_PREDEFINED: Final = (MAX, MIN, SUM, PROD, LAND, LOR, LXOR, BAND, BOR, BXOR, MAXLOC, MINLOC, REPLACE, NO_OP, OP_NULL)
