"""Workloads: programs that run on all nodes of a cluster at once, on any protocol, and record rows as results.

A workload is a class whose fields are its settings (`form.Workload`), or an ``async def`` function:

    from testbed.workloads.form import Comm, Node, Workload
    from testbed.workloads.workload_settings import Size


    class Greeting(Workload):
        \"\"\"Rank 0 greets everybody.\"\"\"

        size: Size = 64       # --set size=1KiB
        count: int = 3        # --set count=5

        async def rank(self, comm: Comm, node: Node) -> int:
            for number in range(self.count):
                if comm.rank == 0:
                    start_time = node.now()
                    for peer in range(1, comm.size):
                        await comm.Send(bytes(self.size), peer)
                    node.row(number=number, greeted_ns=node.now() - start_time)   # one line of rows.jsonl
                else:
                    await comm.Recv(bytearray(self.size), 0)
            await node.barrier()
            return self.count                                                # outcome.results["n1"]


    async def hello(comm, node, *, count: int = 3): ...                      # a function: keywords are settings

``testbed run star-4 ./greeting.py:Greeting --set count=5`` runs it, and so does ``testbed.run("star-4", Greeting(count=5))``
(see `testbed.controller.runs.runner`). A package registers its workloads as entry points of the group "testbed.workloads".

A workload only uses `comm` (MPI calls, awaited) and `node` (time, rows, barriers, random numbers), so that it runs in the
simulation and in namespaces. It verifies its messages, and raises `form.VerificationError` if one is wrong. Keys of a row
end with the unit of the value: ``_ns``, ``_bytes``, ``_bit_s``, ``_per_s``.
"""
