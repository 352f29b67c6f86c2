"""Names shared by the awaited and the blocking interface: constants, datatypes, error classes, Status."""

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, COMM_NULL, PROC_NULL, UNDEFINED
from protocols.mpi.datatypes import (
    BYTE,
    C_BOOL,
    C_DOUBLE_COMPLEX,
    C_FLOAT_COMPLEX,
    CHAR,
    DOUBLE,
    FLOAT,
    INT,
    INT8_T,
    INT16_T,
    INT32_T,
    INT64_T,
    LONG,
    LONG_LONG,
    SHORT,
    SIGNED_CHAR,
    UINT8_T,
    UINT16_T,
    UINT32_T,
    UINT64_T,
    UNSIGNED,
    UNSIGNED_CHAR,
    UNSIGNED_LONG,
    UNSIGNED_LONG_LONG,
    UNSIGNED_SHORT,
    Datatype,
)
from protocols.mpi.mpi_errors import (
    ERR_ARG,
    ERR_BUFFER,
    ERR_COMM,
    ERR_COUNT,
    ERR_IN_STATUS,
    ERR_NO_MEM,
    ERR_OTHER,
    ERR_PROC_FAILED,
    ERR_RANK,
    ERR_REQUEST,
    ERR_TAG,
    ERR_TRUNCATE,
    ERR_TYPE,
    SUCCESS,
)
from protocols.mpi.mpi_errors import MPIError as Exception  # noqa: A004 -- mpi4py's name
from protocols.mpi.mpi_status import Status

__all__ = [
    "ANY_SOURCE", "ANY_TAG", "BYTE", "CHAR", "COMM_NULL", "C_BOOL", "C_DOUBLE_COMPLEX", "C_FLOAT_COMPLEX", "DOUBLE",
    "ERR_ARG", "ERR_BUFFER", "ERR_COMM", "ERR_COUNT", "ERR_IN_STATUS", "ERR_NO_MEM", "ERR_OTHER", "ERR_PROC_FAILED",
    "ERR_RANK", "ERR_REQUEST", "ERR_TAG", "ERR_TRUNCATE", "ERR_TYPE", "FLOAT", "INT", "INT8_T", "INT16_T", "INT32_T",
    "INT64_T", "LONG", "LONG_LONG", "PROC_NULL", "SHORT", "SIGNED_CHAR", "SUCCESS", "UINT8_T", "UINT16_T", "UINT32_T",
    "UINT64_T", "UNDEFINED", "UNSIGNED", "UNSIGNED_CHAR", "UNSIGNED_LONG", "UNSIGNED_LONG_LONG", "UNSIGNED_SHORT",
    "Datatype", "Exception", "Status",
]  # fmt: skip
