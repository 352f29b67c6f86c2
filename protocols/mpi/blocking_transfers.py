"""mpi4py's calls that transfer data, for blocking programs."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from protocols.mpi import comm as coroutine_comm
from protocols.mpi.blocking_requests import BlockingWrapper, Message, blocking, nonblocking, persistent
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.mpi_status import Status


class Transfers(BlockingWrapper[coroutine_comm.Comm]):
    """Point-to-point and collective calls of `comm.Comm`."""

    __slots__ = ()

    Send = blocking(coroutine_comm.Comm.Send)
    Ssend = blocking(coroutine_comm.Comm.Ssend)
    Recv = blocking(coroutine_comm.Comm.Recv)
    Sendrecv = blocking(coroutine_comm.Comm.Sendrecv)
    Bsend = blocking(coroutine_comm.Comm.Bsend)
    Ibsend = nonblocking(coroutine_comm.Comm.Ibsend)
    Bsend_init = persistent(coroutine_comm.Comm.Bsend_init)
    Detach_buffer = blocking(coroutine_comm.Comm.Detach_buffer)
    Sendrecv_replace = blocking(coroutine_comm.Comm.Sendrecv_replace)
    Isendrecv = nonblocking(coroutine_comm.Comm.Isendrecv)
    Isendrecv_replace = nonblocking(coroutine_comm.Comm.Isendrecv_replace)
    Rsend = blocking(coroutine_comm.Comm.Rsend)
    Irsend = nonblocking(coroutine_comm.Comm.Irsend)
    Rsend_init = persistent(coroutine_comm.Comm.Rsend_init)
    Isend = nonblocking(coroutine_comm.Comm.Isend)
    Issend = nonblocking(coroutine_comm.Comm.Issend)
    Irecv = nonblocking(coroutine_comm.Comm.Irecv)
    Send_init = persistent(coroutine_comm.Comm.Send_init)
    Ssend_init = persistent(coroutine_comm.Comm.Ssend_init)
    Recv_init = persistent(coroutine_comm.Comm.Recv_init)

    send = blocking(coroutine_comm.Comm.send)
    rsend = blocking(coroutine_comm.Comm.rsend)
    irsend = nonblocking(coroutine_comm.Comm.irsend)
    bsend = blocking(coroutine_comm.Comm.bsend)
    ibsend = nonblocking(coroutine_comm.Comm.ibsend)
    ssend = blocking(coroutine_comm.Comm.ssend)
    recv = blocking(coroutine_comm.Comm.recv)
    sendrecv = blocking(coroutine_comm.Comm.sendrecv)
    isend = nonblocking(coroutine_comm.Comm.isend)
    issend = nonblocking(coroutine_comm.Comm.issend)
    irecv = nonblocking(coroutine_comm.Comm.irecv)

    Probe = blocking(coroutine_comm.Comm.Probe)
    Iprobe = blocking(coroutine_comm.Comm.Iprobe)
    probe = Probe
    iprobe = Iprobe

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """See `comm.Comm.Mprobe`."""
        return Message(self.run(self.wrapped.Mprobe(source, tag, status)), self.run)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """See `comm.Comm.Improbe`."""
        message = self.run(self.wrapped.Improbe(source, tag, status))
        return None if message is None else Message(message, self.run)

    mprobe = Mprobe
    improbe = Improbe

    Barrier = blocking(coroutine_comm.Comm.Barrier)
    Bcast = blocking(coroutine_comm.Comm.Bcast)
    Gather = blocking(coroutine_comm.Comm.Gather)
    Gatherv = blocking(coroutine_comm.Comm.Gatherv)
    Scatter = blocking(coroutine_comm.Comm.Scatter)
    Scatterv = blocking(coroutine_comm.Comm.Scatterv)
    Allgather = blocking(coroutine_comm.Comm.Allgather)
    Allgatherv = blocking(coroutine_comm.Comm.Allgatherv)
    Alltoall = blocking(coroutine_comm.Comm.Alltoall)
    Alltoallv = blocking(coroutine_comm.Comm.Alltoallv)
    Alltoallw = blocking(coroutine_comm.Comm.Alltoallw)
    Reduce = blocking(coroutine_comm.Comm.Reduce)
    Allreduce = blocking(coroutine_comm.Comm.Allreduce)
    Reduce_scatter_block = blocking(coroutine_comm.Comm.Reduce_scatter_block)
    Reduce_scatter = blocking(coroutine_comm.Comm.Reduce_scatter)
    Scan = blocking(coroutine_comm.Comm.Scan)
    Exscan = blocking(coroutine_comm.Comm.Exscan)

    Ibarrier = nonblocking(coroutine_comm.Comm.Ibarrier)
    Ibcast = nonblocking(coroutine_comm.Comm.Ibcast)
    Igather = nonblocking(coroutine_comm.Comm.Igather)
    Igatherv = nonblocking(coroutine_comm.Comm.Igatherv)
    Iscatter = nonblocking(coroutine_comm.Comm.Iscatter)
    Iscatterv = nonblocking(coroutine_comm.Comm.Iscatterv)
    Iallgather = nonblocking(coroutine_comm.Comm.Iallgather)
    Iallgatherv = nonblocking(coroutine_comm.Comm.Iallgatherv)
    Ialltoall = nonblocking(coroutine_comm.Comm.Ialltoall)
    Ialltoallv = nonblocking(coroutine_comm.Comm.Ialltoallv)
    Ialltoallw = nonblocking(coroutine_comm.Comm.Ialltoallw)
    Ireduce = nonblocking(coroutine_comm.Comm.Ireduce)
    Iallreduce = nonblocking(coroutine_comm.Comm.Iallreduce)
    Ireduce_scatter_block = nonblocking(coroutine_comm.Comm.Ireduce_scatter_block)
    Ireduce_scatter = nonblocking(coroutine_comm.Comm.Ireduce_scatter)
    Iscan = nonblocking(coroutine_comm.Comm.Iscan)
    Iexscan = nonblocking(coroutine_comm.Comm.Iexscan)

    Barrier_init = persistent(coroutine_comm.Comm.Barrier_init)
    Bcast_init = persistent(coroutine_comm.Comm.Bcast_init)
    Gather_init = persistent(coroutine_comm.Comm.Gather_init)
    Gatherv_init = persistent(coroutine_comm.Comm.Gatherv_init)
    Scatter_init = persistent(coroutine_comm.Comm.Scatter_init)
    Scatterv_init = persistent(coroutine_comm.Comm.Scatterv_init)
    Allgather_init = persistent(coroutine_comm.Comm.Allgather_init)
    Allgatherv_init = persistent(coroutine_comm.Comm.Allgatherv_init)
    Alltoall_init = persistent(coroutine_comm.Comm.Alltoall_init)
    Alltoallv_init = persistent(coroutine_comm.Comm.Alltoallv_init)
    Alltoallw_init = persistent(coroutine_comm.Comm.Alltoallw_init)
    Reduce_init = persistent(coroutine_comm.Comm.Reduce_init)
    Allreduce_init = persistent(coroutine_comm.Comm.Allreduce_init)
    Reduce_scatter_block_init = persistent(coroutine_comm.Comm.Reduce_scatter_block_init)
    Reduce_scatter_init = persistent(coroutine_comm.Comm.Reduce_scatter_init)
    Scan_init = persistent(coroutine_comm.Comm.Scan_init)
    Exscan_init = persistent(coroutine_comm.Comm.Exscan_init)

    barrier = Barrier
    bcast = blocking(coroutine_comm.Comm.bcast)
    gather = blocking(coroutine_comm.Comm.gather)
    scatter = blocking(coroutine_comm.Comm.scatter)
    allgather = blocking(coroutine_comm.Comm.allgather)
    alltoall = blocking(coroutine_comm.Comm.alltoall)
    reduce = blocking(coroutine_comm.Comm.reduce)
    allreduce = blocking(coroutine_comm.Comm.allreduce)
    scan = blocking(coroutine_comm.Comm.scan)
    exscan = blocking(coroutine_comm.Comm.exscan)
