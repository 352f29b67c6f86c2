"""MPI with mpi4py's names, for programs that are coroutines, over any host library that matches messages.

Use ``comm = Comm(emp.device(endpoint))``, then ``await comm.Send(...)``; `blocking_calls` has the same calls for
programs that block. Calls behave as the MPI Forum's "MPI: A Message-Passing Interface Standard", version 4.1, defines
them (chapter 3 for point-to-point calls, chapter 6 for collective ones).
"""

from protocols.mpi import mpi_names
from protocols.mpi.comm import Comm
from protocols.mpi.constants import COMM_NULL
from protocols.mpi.mpi_messages import Message
from protocols.mpi.mpi_names import *  # noqa: F403
from protocols.mpi.requests import Prequest, Request

__all__ = ["COMM_NULL", "Comm", "Message", "Prequest", "Request"]
__all__ += mpi_names.__all__
