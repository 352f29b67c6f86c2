"""Workloads that know one protocol: they have its host library itself, and no MPI.

    class Hello(Native[ActiveMessages]):
        protocol = "am2"

        async def program(self, library: ActiveMessages, node: Node) -> None: ...

The NIC has what the program asks it for, and nothing else: no endpoint of MPI's is beside the program's own.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from testbed.workloads.form import Node, Workload

Library = TypeVar("Library")


class Native(Workload, Generic[Library]):
    """protocol: its registered name. Barriers and words between nodes (`Node.barrier`, `Node.say`) go over MPI: there are
    none."""

    protocol: ClassVar[str]

    async def program(self, library: Library, node: Node) -> object:
        """What one node does; library: its NIC's. As `rank` of other workloads."""
        raise NotImplementedError
