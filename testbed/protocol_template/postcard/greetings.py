"""A workload: `testbed run star-4 postcard-greeting --protocol postcard --mode sim`."""

from __future__ import annotations

from testbed.workloads.form import Comm, Node, VerificationError, Workload
from testbed.workloads.workload_settings import Size


class Greeting(Workload):
    """Rank 0 sends a greeting to every other rank.

    size: size of a greeting, bytes.
    """

    size: Size = 64

    async def rank(self, comm: Comm, node: Node) -> int:
        greeting = b"hello " * (self.size // 6 + 1)
        if comm.rank == 0:
            for peer in range(1, comm.size):
                await comm.Send(greeting[: self.size], peer)
            node.row(greeted=comm.size - 1)
            return 0
        buffer = bytearray(self.size)
        await comm.Recv(buffer, 0)
        if buffer != greeting[: self.size]:
            raise VerificationError(f"expected a greeting, received {bytes(buffer[:20])!r}")
        return self.size
