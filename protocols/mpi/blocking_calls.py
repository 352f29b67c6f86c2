"""mpi4py's communicators for blocking programs. Most calls have the name and arguments of a coroutine of `comm`, and return
when it has ended; `Abort`, `Split_type`, and the calls for properties and info exist only here. `blocking_requests` has
requests and messages.
"""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from protocols.mpi import comm as coroutine_comm
from protocols.mpi.blocking_properties import PropertyCalls
from protocols.mpi.blocking_requests import (
    MESSAGE_NO_PROC,
    MESSAGE_NULL,
    REQUEST_NULL,
    CallCoroutine,
    CoroutineRunner,
    Message,
    Prequest,
    Request,
    blocking,
    nonblocking,
    persistent,
    run_completed,
)
from protocols.mpi.collectives.choices import Algorithms
from protocols.mpi.comm_properties import Properties
from protocols.mpi.constants import (
    CART,
    COMM_TYPE_HW_GUIDED,
    COMM_TYPE_HW_UNGUIDED,
    COMM_TYPE_RESOURCE_GUIDED,
    COMM_TYPE_SHARED,
    DIST_GRAPH,
    GRAPH,
    TAG_UB,
    UNDEFINED,
    UNIVERSE_SIZE,
)
from protocols.mpi.groups import Group
from protocols.mpi.info import Info
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COMM, MPIError, check_type

__all__ = [
    "COMM_NULL", "MESSAGE_NO_PROC", "MESSAGE_NULL", "REQUEST_NULL", "CallCoroutine", "Cartcomm", "Comm", "CoroutineRunner",
    "Distgraphcomm", "Graphcomm", "Message", "Prequest", "Request", "Topocomm",
]  # fmt: skip

_GUIDED: Final = (COMM_TYPE_HW_GUIDED, COMM_TYPE_RESOURCE_GUIDED)

TopocommT = TypeVar("TopocommT", bound=coroutine_comm.Topocomm[Any])


class Comm(PropertyCalls):
    """Blocking wrapper of `comm.Comm`. Without an argument it is COMM_NULL, which a freed communicator becomes, too."""

    __slots__ = ()

    _required: ClassVar[type[coroutine_comm.Comm]] = coroutine_comm.Comm
    """Class of the communicators that have this class's calls."""

    def __new__(
        cls,
        comm: coroutine_comm.Comm | Comm | None = None,
        run: CoroutineRunner | None = None,
        properties: Properties | None = None,
    ) -> Self:
        """comm: the communicator to wrap, or a wrapper, of whose communicator this becomes another handle; None: COMM_NULL.
        run: runs a coroutine to its end; None: for coroutines that never wait. properties: the communicator's; None: new
        properties. A wrapper's own `run` and `properties` take precedence. Raises TypeError for another `comm`, such as a
        communicator without the topology of a subclass."""
        if isinstance(comm, Comm):
            run, properties, comm = comm.run, comm.properties, comm.wrapped
        if comm is None or (isinstance(comm, coroutine_comm.Comm) and not comm.size):
            comm = cls._required.null()
        elif not isinstance(comm, cls._required):
            raise TypeError(f"a {cls._required.__name__} is expected, not {type(comm).__name__}")
        handle = super().__new__(cls)
        handle.wrapped, handle.run = comm, run or run_completed
        handle.properties = properties or Properties()
        return handle

    def __init__(
        self,
        comm: coroutine_comm.Comm | Comm | None = None,
        run: CoroutineRunner | None = None,
        properties: Properties | None = None,
    ) -> None:
        """Do nothing: as in mpi4py, `__new__` initialises the handle, perhaps with another communicator, which a subclass's
        `__new__` has passed to it."""

    def __bool__(self) -> bool:
        """Whether it is not COMM_NULL."""
        return self.wrapped.size != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return False
        return self.wrapped is other.wrapped or not (self or other)

    __hash__ = None  # type: ignore[assignment]  # mutable: `Free` makes it COMM_NULL

    @property
    def rank(self) -> int:
        return self.Get_rank()

    @property
    def size(self) -> int:
        return self.Get_size()

    @property
    def tag_ub(self) -> int:
        """The largest tag (MPI_TAG_UB)."""
        return self.wrapped.tag_ub

    def Get_rank(self) -> int:
        self._check()
        return self.wrapped.rank

    def Get_size(self) -> int:
        self._check()
        return self.wrapped.size

    @property
    def algorithms(self) -> Algorithms:
        """See `comm.Comm`."""
        return self.wrapped.algorithms

    def Attach_buffer(self, buf: bytearray | memoryview) -> None:
        """See `point_to_point.PointToPoint.Attach_buffer`."""
        self.wrapped.Attach_buffer(buf)

    def Dup(self, info: Info | None = None) -> Self:
        """See `comm.Comm.Dup`. The duplicate has the class of this handle, and the attributes that their copy functions
        copy. info: hints for the duplicate, none with INFO_NULL; None: those of this communicator."""
        return self._make_duplicate(self.run(self.wrapped.Dup()), info)

    Dup_with_info = Clone = Dup

    def Is_intra(self) -> bool:
        self._check()
        return True

    def Is_inter(self) -> bool:
        self._check()
        return False

    is_intra = property(Is_intra)
    is_inter = property(Is_inter)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """See `comm.Comm.Split`."""
        return self._wrap_derived(self.run(self.wrapped.Split(color, key)))

    def Split_type(self, split_type: int, key: int = 0, info: Info | None = None) -> Comm:
        """Make communicators of the ranks that share memory, that is, the ranks of one node. split_type:
        COMM_TYPE_SHARED, or a guided type with the info mpi_hw_resource_type=mpi_shared_memory. Returns COMM_NULL for
        UNDEFINED, and for other types of hardware, about which nothing is known. Raises MPIError (ERR_ARG) for an
        invalid type."""
        if split_type not in (COMM_TYPE_SHARED, COMM_TYPE_HW_UNGUIDED, *_GUIDED, UNDEFINED):
            raise MPIError(ERR_ARG, f"split_type must be a constant COMM_TYPE_* or UNDEFINED, got {split_type}")
        resource = info.get("mpi_hw_resource_type") if info and split_type in _GUIDED else None
        is_shared = split_type == COMM_TYPE_SHARED or resource == "mpi_shared_memory"
        processors = self.run(self.wrapped.allgather(self.properties.processor_name))
        color = processors.index(self.properties.processor_name) if is_shared else UNDEFINED
        return self.Split(color, key)

    def Idup(self, info: Info | None = None) -> tuple[Self, Request]:
        """See `comm.Comm.Idup`. info: as for `Dup`."""
        comm, request = self.run(self.wrapped.Idup())
        return self._make_duplicate(comm, info), Request(request, self.run)

    Idup_with_info = Idup

    def Create(self, group: Group) -> Comm:
        """See `comm.Comm.Create`."""
        return self._wrap_derived(self.run(self.wrapped.Create(group)))

    def Create_group(self, group: Group, tag: int = 0) -> Comm:
        """See `comm.Comm.Create_group`."""
        return self._wrap_derived(self.run(self.wrapped.Create_group(group, tag)))

    def _make_duplicate(self, comm: coroutine_comm.Comm, info: Info | None) -> Self:
        """Wrap a duplicate, and set its properties; info: as for `Dup`. A subclass's `__new__`, which may duplicate its
        argument, is not called, as in mpi4py."""
        duplicate = Comm.__new__(type(self), comm, self.run, self._derived_properties(comm))
        self.properties.copy_to(self, duplicate.properties)
        if info is not None:
            duplicate.properties.info = Info.Create(info.items())
        return duplicate

    def _wrap_derived(self, comm: coroutine_comm.Comm | None) -> Comm:
        """Wrap a communicator derived from this one; None becomes COMM_NULL."""
        return _WRAPPERS[type(comm)](comm, self.run, self._derived_properties(comm))

    def _derived_properties(self, comm: coroutine_comm.Comm | None) -> Properties:
        properties = make_properties(comm, self.properties.processor_name)
        properties.errhandler = self.properties.errhandler
        return properties

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Comm:
        """See `comm.Comm.Create_cart`."""
        self._check()
        return self._wrap_derived(self.run(self.wrapped.Create_cart(dims, periods, reorder)))

    def Cart_map(self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None) -> int:
        """See `comm.Comm.Cart_map`."""
        self._check()
        return self.wrapped.Cart_map(dims, periods)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Comm:
        """See `comm.Comm.Create_graph`."""
        self._check()
        return self._wrap_derived(self.run(self.wrapped.Create_graph(index, edges, reorder)))

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """See `comm.Comm.Graph_map`."""
        self._check()
        return self.wrapped.Graph_map(index, edges)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: Info | None = None,
        reorder: bool = False,
    ) -> Comm:
        """See `comm.Comm.Create_dist_graph_adjacent`."""
        self._check()
        return self._wrap_derived(
            self.run(
                self.wrapped.Create_dist_graph_adjacent(
                    sources, destinations, sourceweights, destweights, info, reorder
                )
            )
        )

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: Info | None = None,
        reorder: bool = False,
    ) -> Comm:
        """See `comm.Comm.Create_dist_graph`."""
        self._check()
        return self._wrap_derived(
            self.run(self.wrapped.Create_dist_graph(sources, degrees, destinations, weights, info, reorder))
        )

    def Get_group(self) -> Group:
        """See `comm.Comm.Get_group`."""
        return self.wrapped.Get_group()

    def Compare(self, comm: Comm) -> int:
        """See `comm.Comm.Compare`."""
        check_type(comm, Comm)
        return self.wrapped.Compare(comm.wrapped)

    @property
    def group(self) -> Group:
        return self.wrapped.Get_group()

    def Free(self) -> None:
        """See `comm.Comm.Free`. Also deletes the attributes. Raises MPIError (ERR_COMM) for COMM_WORLD and COMM_SELF."""
        self._check()
        if self.properties.is_predefined:
            raise MPIError(ERR_COMM, f"the predefined communicator {self.name} cannot be freed")
        self.properties.free(self)
        self.wrapped.Free()

    Disconnect = Free

    def Get_topology(self) -> int:
        """Return CART, GRAPH or DIST_GRAPH, or UNDEFINED for a communicator without a topology."""
        self._check()
        return _TOPOLOGIES.get(type(self.wrapped), UNDEFINED)

    topology = property(Get_topology)

    @property
    def is_topo(self) -> bool:
        return self.Get_topology() != UNDEFINED

    def Abort(self, errorcode: int = 1) -> None:
        """End the program, and with it the run."""
        process = self.Get_group().processes[self.rank]
        raise SystemExit(f"rank {process} of COMM_WORLD has called Abort, with error code {errorcode}")


class Topocomm(Comm, Generic[TopocommT]):
    """Blocking wrapper of `comm.Topocomm`."""

    __slots__ = ()

    _required = coroutine_comm.Topocomm

    @property
    def _topocomm(self) -> TopocommT:
        """The wrapped communicator. Raises MPIError (ERR_COMM) for COMM_NULL."""
        self._check()
        return cast(TopocommT, self.wrapped)

    @property
    def inedges(self) -> list[int]:
        """Ranks at the other ends of the incoming edges; PROC_NULL for an edge from beyond the border of a grid."""
        return list(self._topocomm.neighbourhood.sources)

    @property
    def outedges(self) -> list[int]:
        """Ranks at the other ends of the outgoing edges; PROC_NULL for an edge beyond the border of a grid."""
        return list(self._topocomm.neighbourhood.destinations)

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        return self.inedges, self.outedges

    @property
    def indegree(self) -> int:
        return len(self.inedges)

    @property
    def outdegree(self) -> int:
        return len(self.outedges)

    @property
    def degrees(self) -> tuple[int, int]:
        return self.indegree, self.outdegree

    Neighbor_allgather = blocking(coroutine_comm.Topocomm.Neighbor_allgather)
    Neighbor_allgatherv = blocking(coroutine_comm.Topocomm.Neighbor_allgatherv)
    Neighbor_alltoall = blocking(coroutine_comm.Topocomm.Neighbor_alltoall)
    Neighbor_alltoallv = blocking(coroutine_comm.Topocomm.Neighbor_alltoallv)
    Neighbor_alltoallw = blocking(coroutine_comm.Topocomm.Neighbor_alltoallw)
    Ineighbor_allgather = nonblocking(coroutine_comm.Topocomm.Ineighbor_allgather)
    Ineighbor_allgatherv = nonblocking(coroutine_comm.Topocomm.Ineighbor_allgatherv)
    Ineighbor_alltoall = nonblocking(coroutine_comm.Topocomm.Ineighbor_alltoall)
    Ineighbor_alltoallv = nonblocking(coroutine_comm.Topocomm.Ineighbor_alltoallv)
    Ineighbor_alltoallw = nonblocking(coroutine_comm.Topocomm.Ineighbor_alltoallw)
    Neighbor_allgather_init = persistent(coroutine_comm.Topocomm.Neighbor_allgather_init)
    Neighbor_allgatherv_init = persistent(coroutine_comm.Topocomm.Neighbor_allgatherv_init)
    Neighbor_alltoall_init = persistent(coroutine_comm.Topocomm.Neighbor_alltoall_init)
    Neighbor_alltoallv_init = persistent(coroutine_comm.Topocomm.Neighbor_alltoallv_init)
    Neighbor_alltoallw_init = persistent(coroutine_comm.Topocomm.Neighbor_alltoallw_init)
    neighbor_allgather = blocking(coroutine_comm.Topocomm.neighbor_allgather)
    neighbor_alltoall = blocking(coroutine_comm.Topocomm.neighbor_alltoall)


class Cartcomm(Topocomm[coroutine_comm.Cartcomm]):
    """Blocking wrapper of `comm.Cartcomm`."""

    __slots__ = ()

    _required = coroutine_comm.Cartcomm

    @property
    def dim(self) -> int:
        return self.Get_dim()

    ndim = dim

    @property
    def topo(self) -> tuple[list[int], list[bool], list[int]]:
        return self.Get_topo()

    @property
    def dims(self) -> list[int]:
        return self.Get_topo()[0]

    @property
    def periods(self) -> list[bool]:
        return self.Get_topo()[1]

    @property
    def coords(self) -> list[int]:
        """This rank's coordinates."""
        return self.Get_topo()[2]

    def Get_dim(self) -> int:
        """See `comm.Cartcomm.Get_dim`."""
        return self._topocomm.Get_dim()

    def Get_topo(self) -> tuple[list[int], list[bool], list[int]]:
        """See `comm.Cartcomm.Get_topo`."""
        return self._topocomm.Get_topo()

    def Get_coords(self, rank: int) -> list[int]:
        """See `comm.Cartcomm.Get_coords`."""
        return self._topocomm.Get_coords(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """See `comm.Cartcomm.Get_cart_rank`."""
        return self._topocomm.Get_cart_rank(coords)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """See `comm.Cartcomm.Shift`."""
        return self._topocomm.Shift(direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """See `comm.Cartcomm.Sub`."""
        subgrid = self.run(self._topocomm.Sub(remain_dims))
        return Cartcomm(subgrid, self.run, self._derived_properties(subgrid))


class Graphcomm(Topocomm[coroutine_comm.Graphcomm]):
    """Blocking wrapper of `comm.Graphcomm`."""

    __slots__ = ()

    _required = coroutine_comm.Graphcomm

    @property
    def dims(self) -> tuple[int, int]:
        return self.Get_dims()

    @property
    def nnodes(self) -> int:
        return self.Get_dims()[0]

    @property
    def nedges(self) -> int:
        return self.Get_dims()[1]

    @property
    def topo(self) -> tuple[list[int], list[int]]:
        return self.Get_topo()

    @property
    def index(self) -> list[int]:
        return self.Get_topo()[0]

    @property
    def edges(self) -> list[int]:
        return self.Get_topo()[1]

    @property
    def neighbors(self) -> list[int]:
        """This rank's neighbours."""
        return self.Get_neighbors(self.rank)

    @property
    def nneighbors(self) -> int:
        return len(self.neighbors)

    def Get_dims(self) -> tuple[int, int]:
        """See `comm.Graphcomm.Get_dims`."""
        return self._topocomm.Get_dims()

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """See `comm.Graphcomm.Get_topo`."""
        return self._topocomm.Get_topo()

    def Get_neighbors_count(self, rank: int) -> int:
        """See `comm.Graphcomm.Get_neighbors_count`."""
        return self._topocomm.Get_neighbors_count(rank)

    def Get_neighbors(self, rank: int) -> list[int]:
        """See `comm.Graphcomm.Get_neighbors`."""
        return self._topocomm.Get_neighbors(rank)


class Distgraphcomm(Topocomm[coroutine_comm.Distgraphcomm]):
    """Blocking wrapper of `comm.Distgraphcomm`."""

    __slots__ = ()

    _required = coroutine_comm.Distgraphcomm

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """See `comm.Distgraphcomm.Get_dist_neighbors_count`."""
        return self._topocomm.Get_dist_neighbors_count()

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """See `comm.Distgraphcomm.Get_dist_neighbors`."""
        return self._topocomm.Get_dist_neighbors()


_WRAPPERS: Final[Mapping[type, type[Comm]]] = {
    type(None): Comm,
    coroutine_comm.Comm: Comm,
    coroutine_comm.Cartcomm: Cartcomm,
    coroutine_comm.Graphcomm: Graphcomm,
    coroutine_comm.Distgraphcomm: Distgraphcomm,
}
_TOPOLOGIES: Final[Mapping[type, int]] = {
    coroutine_comm.Cartcomm: CART,
    coroutine_comm.Graphcomm: GRAPH,
    coroutine_comm.Distgraphcomm: DIST_GRAPH,
}


def make_properties(comm: coroutine_comm.Comm | None, processor: str, name: str = "") -> Properties:
    """Make the properties of a new communicator. comm: None for COMM_NULL. processor: name of this rank's node. name: name
    of a predefined communicator, otherwise empty."""
    if comm is None:
        return Properties(processor_name=processor)
    fixed: dict[int, object] = {TAG_UB: comm.tag_ub}
    if name == "MPI_COMM_WORLD":
        fixed[UNIVERSE_SIZE] = comm.size
    return Properties(name, processor, fixed)


COMM_NULL: Final = Comm()
"""The null communicator: its calls raise MPI.Exception with ERR_COMM, except `Get_name`, which returns MPI_COMM_NULL."""
