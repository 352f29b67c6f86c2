"""Groups: ordered sets of processes. MPI 4.1, section 7.3. A process is identified by its rank in COMM_WORLD."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.mpi.constants import PROC_NULL, UNDEFINED
from protocols.mpi.mpi_errors import ERR_ARG, ERR_GROUP, ERR_RANK, Handle, MPIError, check_type

IDENT: Final = 0
CONGRUENT: Final = 1
SIMILAR: Final = 2
UNEQUAL: Final = 3
"""Results of comparisons."""


class Group(Handle):
    """A group. Without an argument it is GROUP_NULL, which a freed group becomes, too."""

    __slots__ = ("__weakref__", "_own", "_processes")

    __hash__ = None  # type: ignore[assignment]  # mutable: `Free` makes it GROUP_NULL

    def __init__(self, processes: Sequence[int] | Group | None = None, own: int = UNDEFINED) -> None:
        """processes: in the order of ranks; for a group, this becomes another handle of it. own: this process."""
        self._own: int = processes._own if isinstance(processes, Group) else own
        self._processes: tuple[int, ...] | None
        if processes is None or isinstance(processes, Group):
            self._processes = None if processes is None else processes._processes
        elif isinstance(processes, list | tuple | range):
            self._processes = tuple(processes)
        else:
            raise TypeError(f"a Group is expected, not {type(processes).__name__}")

    @property
    def processes(self) -> tuple[int, ...]:
        """Processes in the order of ranks. Raises MPIError (ERR_GROUP) for GROUP_NULL."""
        if self._processes is None:
            raise MPIError(ERR_GROUP, "the group is GROUP_NULL, or was freed")
        return self._processes

    def __bool__(self) -> bool:
        """Whether it is not GROUP_NULL."""
        return self._processes is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._processes == other._processes

    def __repr__(self) -> str:
        return f"<Group of {list(self.processes)}>" if self else "<Group: GROUP_NULL>"

    @property
    def size(self) -> int:
        return len(self.processes)

    @property
    def rank(self) -> int:
        """This process's rank; UNDEFINED if it is not a member."""
        return self.processes.index(self._own) if self._own in self.processes else UNDEFINED

    def Get_size(self) -> int:
        return self.size

    def Get_rank(self) -> int:
        return self.rank

    def Incl(self, ranks: Sequence[int]) -> Group:
        """Return the group of these ranks, in this order. Raises MPIError (ERR_RANK) for invalid and repeated ranks."""
        if len(set(ranks)) != len(ranks):
            raise MPIError(ERR_RANK, f"ranks must be distinct, got {list(ranks)}")
        return self._subgroup([self._process_of(rank) for rank in ranks])

    def Excl(self, ranks: Sequence[int]) -> Group:
        """Return the group without these ranks."""
        excluded = {self._process_of(rank) for rank in ranks}
        return self._subgroup([process for process in self.processes if process not in excluded])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Return the group of the ranks in ranges (first, last, stride); ranges include their last rank."""
        return self.Incl(_expand_ranges(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Return the group without the ranks in ranges (first, last, stride)."""
        return self.Excl(_expand_ranges(ranks))

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """Return the first group's members, followed by the second group's members that are not in the first."""
        check_type(group1, Group)
        check_type(group2, Group)
        return group1._subgroup(
            [*group1.processes, *(process for process in group2.processes if process not in group1.processes)]
        )

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """Return the first group's members that are also in the second."""
        check_type(group1, Group)
        check_type(group2, Group)
        return group1._subgroup([process for process in group1.processes if process in group2.processes])

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """Return the first group's members that are not in the second."""
        check_type(group1, Group)
        check_type(group2, Group)
        return group1._subgroup([process for process in group1.processes if process not in group2.processes])

    def Compare(self, group: Group) -> int:
        """Return IDENT for equal members in equal order, SIMILAR for equal members in another order, else UNEQUAL."""
        check_type(group, Group)
        if self.processes == group.processes:
            return IDENT
        return SIMILAR if sorted(self.processes) == sorted(group.processes) else UNEQUAL

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Convert ranks of this group to ranks of another; UNDEFINED for a process that is not a member. ranks: None for all
        ranks. group: None for this one."""
        members = group.processes if group is not None else self.processes
        translated = []
        for rank in range(self.size) if ranks is None else ranks:
            process = PROC_NULL if rank == PROC_NULL else self._process_of(rank)
            translated.append(
                PROC_NULL if process == PROC_NULL else members.index(process) if process in members else UNDEFINED
            )
        return translated

    def Dup(self) -> Group:
        return self._subgroup(self.processes)

    def Free(self) -> None:
        """Free the group: it becomes GROUP_NULL. Raises MPIError (ERR_GROUP) for GROUP_NULL."""
        if not self:
            raise MPIError(ERR_GROUP, "the group is GROUP_NULL, or was freed")
        self._processes = None

    def _subgroup(self, processes: Sequence[int]) -> Group:
        return Group(processes, self._own)

    def _process_of(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise MPIError(ERR_RANK, f"rank must be 0 to {self.size - 1}, got {rank}")
        return self.processes[rank]


def _expand_ranges(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    if any(not stride for _, _, stride in ranges):
        raise MPIError(ERR_ARG, f"strides must not be 0, got the ranges {list(ranges)}")
    return [rank for first, last, stride in ranges for rank in range(first, last + (1 if stride > 0 else -1), stride)]


GROUP_EMPTY: Final = Group(())
GROUP_NULL: Final = Group()
