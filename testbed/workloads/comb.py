"""COMB's post-work-wait method (Lawry, Wilson, Maccabe, Brightwell, "COMB: a portable benchmark suite for assessing MPI
overlap", CLUSTER 2002): the share of the processor that is available to a program during transfers."""

from __future__ import annotations

from statistics import median

from testbed.workloads.form import Comm, Contents, Node, Workload
from testbed.workloads.workload_settings import Duration, MessageSize

_DATA, _READY = 1, 2


class Comb(Workload):
    """Post receives, send, work, wait: bandwidth against the processor's availability to the work, and the time of each
    step.

    Ranks 0 and `peer` exchange `batch` messages each way; rank 0 works in between, from 0 to `work` nanoseconds in `steps`
    steps. rounds: exchanges per step, of which the medians are used. If a NIC runs in its host's process (`inline`), the
    rows show that no message is transferred during the work.
    """

    supports_restarts = False

    size: MessageSize = 65536
    batch: int = 10
    work: Duration = 10_000_000
    steps: int = 6
    rounds: int = 5
    peer: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.steps, self.rounds, self.peer) < 1:
            raise ValueError("batch, steps, rounds and peer: 1 or more")

    async def rank(self, comm: Comm, node: Node) -> None:
        if self.peer >= comm.size:
            raise ValueError(f"peer {self.peer}: there are ranks 0 to {comm.size - 1}")
        if comm.rank not in (0, self.peer):
            return
        contents = Contents(node.seed, "comb", self.size)
        for step in range(self.steps):
            work = self.work * step // max(1, self.steps - 1)
            calls = [await self._round(comm, node, contents, work if comm.rank == 0 else 0) for _ in range(self.rounds)]
            if comm.rank:
                continue
            posting, sending, working, waiting = (round(median(times)) for times in zip(*calls, strict=True))
            total = max(1, posting + sending + working + waiting)
            node.row(
                size_bytes=self.size, work_ns=work, availability=work / total,
                bandwidth_bit_s=8e9 * self.size * self.batch * 2 / total,
                post_ns=posting, send_ns=sending, worked_ns=working, wait_ns=waiting,
            )  # fmt: skip

    async def _round(self, comm: Comm, node: Node, contents: Contents, work: int) -> tuple[int, int, int, int]:
        """Run one exchange; return the nanoseconds of posting, sending, working and waiting."""
        peer, now = self.peer - comm.rank, node.now
        buffers = [bytearray(self.size) for _ in range(self.batch)]
        started = now()
        receives = [await comm.Irecv(buffer, peer, _DATA) for buffer in buffers]
        posted = now()
        await comm.Sendrecv(None, peer, _READY, None, peer, _READY)
        ready = now()
        sends = [await comm.Isend(contents.of(number, self.size), peer, _DATA) for number in range(self.batch)]
        sent = now()
        if work:
            await node.compute(work)
        work_end = now()
        for request in (*receives, *sends):
            await request.Wait()
        waited = now()
        for number, buffer in enumerate(buffers):
            contents.check(number, buffer, f"from rank {peer}")
        return posted - started, sent - ready, work_end - sent, waited - work_end
