"""Workload ``nas``: one kernel of the NAS Parallel Benchmarks (NPB), or only its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, Protocol

from protocols.mpi.constants import UNDEFINED
from testbed.errors import TestbedError
from testbed.workloads.form import Comm, Node, Workload
from testbed.workloads.nas.problem_classes import CG, FT, IS, MG


class Problem(Protocol):
    """A problem class of a kernel."""

    @property
    def iterations(self) -> int: ...

    def operations(self) -> float: ...


_CLASSES: Final[Mapping[str, Mapping[str, Problem]]] = {"is": IS, "cg": CG, "mg": MG, "ft": FT}
_MILLION: Final = 1e6
_SECOND: Final = 1e9  # ns


class Kernel(Protocol):
    """One rank of a kernel. Only the time of `solve` is measured."""

    async def prepare(self) -> None: ...

    async def solve(self) -> None: ...

    async def verify(self) -> float:
        """Return the value that NPB verifies. Raises VerificationError."""
        ...


class Nas(Workload):
    """NAS Parallel Benchmarks: the kernels IS, CG, MG and FT, verified, or only their messages.

    kernel, problem: kernel and class, as in NPB's "is.S". The number of ranks is rounded down to a power of two. schedule:
    exchange the kernel's messages without its data, and use each rank's processor for the time of NPB's number of
    operations. mops: millions of operations per second of a processor; the default is that of no published machine.
    iterations: number of iterations of a schedule, up to that of the class; 0: all.
    """

    supports_restarts = False

    kernel: Literal["is", "cg", "mg", "ft"] = "is"
    problem: Literal["S", "W", "A", "B", "C"] = "S"
    schedule: bool = False
    mops: int = 500
    iterations: int = 0

    def __post_init__(self) -> None:
        if self.mops < 1:
            raise ValueError("mops: 1 or more")
        max_iterations = _CLASSES[self.kernel][self.problem].iterations if self.schedule else 0
        if not 0 <= self.iterations <= max_iterations:
            raise ValueError(
                f"iterations: 0 to {max_iterations}, of {self.kernel}.{self.problem} with schedule={self.schedule}"
            )
        if self.kernel == "ft" and not self.schedule and not FT[self.problem].checksums:
            raise ValueError(
                f"ft.{self.problem}: its checksums are not included; only its messages can run: schedule=true"
            )

    @property
    def problem_class(self) -> Any:
        """The kernel's problem class, with the iterations of a schedule."""
        problem: Any = _CLASSES[self.kernel][self.problem]
        return replace(problem, iterations=self.iterations) if self.iterations else problem

    async def rank(self, comm: Comm, node: Node) -> None:
        ranks = 1 << (comm.size.bit_length() - 1)
        limit = _max_ranks(self.kernel, self.problem)
        if ranks > limit:
            raise ValueError(f"{self.kernel}.{self.problem} runs on up to {limit} ranks, not {ranks}")
        group = await comm.Split(0 if comm.rank < ranks else UNDEFINED, comm.rank)
        if group is not None:
            await self._measure(group, node)
            group.Free()

    async def _measure(self, comm: Comm, node: Node) -> None:
        kernel = self._make_kernel(comm, node)
        await kernel.prepare()
        await comm.Barrier()
        start_time = node.now()
        await kernel.solve()
        elapsed = node.now() - start_time
        value = await kernel.verify()
        times = await comm.gather(elapsed)
        if times is None:
            return
        slowest = max(times)
        operations = self.problem_class.operations()
        rate = {"mops": operations / _MILLION / slowest * _SECOND} if slowest else {}
        verified = {} if self.schedule else {"verified": True, "value": value}
        node.row(
            kernel=self.kernel, problem=self.problem, ranks=comm.size, schedule=self.schedule, took_ns=slowest,
            **rate, **verified,
        )  # fmt: skip

    def _make_kernel(self, comm: Comm, node: Node) -> Kernel:
        try:
            import numpy  # noqa: F401  optional
        except ImportError:
            raise TestbedError("NAS kernels need NumPy: pip install 'netns-testbed[mpi]'") from None
        if self.schedule:
            return _Schedule(self, comm, node)
        problem = self.problem_class
        if self.kernel == "is":
            from testbed.workloads.nas.integer_sort import IntegerSort

            return IntegerSort(comm, problem)
        if self.kernel == "cg":
            from testbed.workloads.nas.conjugate_gradient import ConjugateGradient

            return ConjugateGradient(comm, problem)
        if self.kernel == "mg":
            from testbed.workloads.nas.multigrid import MultiGrid

            return MultiGrid(comm, problem)
        from testbed.workloads.nas.fourier_transform import FourierTransform

        return FourierTransform(comm, problem)


class _Schedule:
    """A kernel's messages and simulated computation, in place of the kernel."""

    def __init__(self, workload: Nas, comm: Comm, node: Node) -> None:
        self._workload = workload
        self._comm = comm
        self._node = node

    async def prepare(self) -> None: ...

    async def solve(self) -> None:
        from testbed.workloads.nas.schedules import SCHEDULES, Messages

        schedule = SCHEDULES[self._workload.kernel]
        await schedule(Messages(self._comm), self._workload.problem_class, self._compute)

    async def verify(self) -> float:
        return 0.0

    async def _compute(self, operations: float) -> None:
        await self._node.compute(round(operations / (self._workload.mops * _MILLION) * _SECOND))


def _max_ranks(kernel: str, problem: str) -> int:
    """Return the maximum number of ranks of a problem."""
    if kernel == "ft":
        return FT[problem].shape[2]
    if kernel == "mg":
        return MG[problem].edge ** 3
    # A rank of IS has some keys of each bucket; a rank of CG has some rows.
    return IS[problem].buckets if kernel == "is" else 1 << (CG[problem].order.bit_length() - 1)
