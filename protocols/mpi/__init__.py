"""MPI point-to-point with mpi4py's names, for programs that are coroutines, over any host library that matches messages.

``comm = Comm(emp.device(endpoint))``, then ``await comm.Send(...)``; `blocking` has the same calls for programs that block.
What the standard says of a call holds; the MPI Forum's "MPI: A Message-Passing Interface Standard", version 4.1, chapter 3,
is the source.
"""

from protocols.mpi import names
from protocols.mpi.comm import Comm
from protocols.mpi.messages import Message
from protocols.mpi.names import *  # noqa: F403
from protocols.mpi.requests import Prequest, Request

__all__ = ["Comm", "Message", "Prequest", "Request"]
__all__ += names.__all__
