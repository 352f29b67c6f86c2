"""A third-party workload."""

from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.workload_settings import Size


class Greeting(Workload):
    """Rank 0 sends a greeting to every other rank."""

    size: Size = 64

    async def rank(self, comm: Comm, node: Node) -> int:
        if comm.rank == 0:
            for other in range(1, comm.size):
                await comm.Send(bytes(self.size), other)
            node.row(greeted=comm.size - 1)
            return 0
        buffer = bytearray(b"?" * self.size)
        await comm.Recv(buffer, 0)
        return buffer.count(0)
