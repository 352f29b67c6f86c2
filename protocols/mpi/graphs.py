"""Graph topologies: each rank's neighbours, given for all ranks at once or by each rank. MPI 4.1, section 8.5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocols.mpi.collectives.neighbourhoods import Neighbourhood
from protocols.mpi.mpi_errors import ERR_ARG, ERR_RANK, ArgumentValueError, MPIError

Edge = tuple[int, int, int]
"""Source, destination and weight."""


class Graph(NamedTuple):
    """A graph that all ranks know. ends: number of neighbours of the ranks up to each one (MPI's index). edges: the
    neighbours of rank 0, of rank 1, and so on."""

    ends: tuple[int, ...]
    edges: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ends)

    def neighbours(self, rank: int) -> list[int]:
        """Return the neighbours of a rank. Raises MPIError (ERR_RANK) for a rank outside of the graph."""
        if not 0 <= rank < self.size:
            raise MPIError(ERR_RANK, f"rank must be 0 to {self.size - 1}, got {rank}")
        return list(self.edges[self.ends[rank - 1] if rank else 0 : self.ends[rank]])

    def neighbourhood(self, rank: int) -> Neighbourhood:
        """Return the edges of a rank, each of which leads both ways."""
        neighbours = self.neighbours(rank)
        return Neighbourhood(neighbours, neighbours, range(len(neighbours)))


class DistributedGraph(NamedTuple):
    """Edges of one rank in a graph. sources, destinations: ranks. weights: of both, or None for edges without weights."""

    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    weights: tuple[tuple[int, ...], tuple[int, ...]] | None

    def neighbourhood(self, _: int) -> Neighbourhood:
        return Neighbourhood(self.sources, self.destinations, range(len(self.destinations)))


def make_graph(index: Sequence[int], edges: Sequence[int], size: int) -> Graph:
    """Make a graph of at most `size` ranks. index: the ends in `Graph`, or with a 0 before them, as mpi4py allows. Raises
    MPIError (ERR_ARG) if it does not describe the edges."""
    if index and index[0] == 0 and len(index) > 1 and index[-1] == len(edges):
        index = index[1:]
    if list(index) != sorted(index) or (index[-1] if index else 0) != len(edges):
        raise MPIError(ERR_ARG, f"index must increase up to the number of edges, {len(edges)}, got {list(index)}")
    if len(index) > size:
        raise MPIError(ERR_ARG, f"a graph of {len(index)} ranks, the communicator has {size}")
    _check_ranks(edges, len(index))
    return Graph(tuple(index), tuple(edges))


def adjacent_edges(
    sources: Sequence[int] | None,
    destinations: Sequence[int] | None,
    source_weights: Sequence[int] | None,
    destination_weights: Sequence[int] | None,
    size: int,
) -> DistributedGraph:
    """Make the edges of a rank from what it passes: None for no edges, and for no weights. size: of the communicator. Raises
    MPIError: ERR_RANK, and ERR_ARG for another number of weights than of edges."""
    sources, destinations = sources or (), destinations or ()
    _check_ranks((*sources, *destinations), size)
    if source_weights is None and destination_weights is None:
        return DistributedGraph(tuple(sources), tuple(destinations), None)
    weights = tuple(source_weights or ()), tuple(destination_weights or ())
    if (len(weights[0]), len(weights[1])) != (len(sources), len(destinations)):
        raise ArgumentValueError(
            ERR_ARG,
            f"{len(weights[0])} and {len(weights[1])} weights for {len(sources)} sources and {len(destinations)} "
            "destinations",
        )
    return DistributedGraph(tuple(sources), tuple(destinations), weights)


def listed_edges(
    sources: Sequence[int],
    degrees: Sequence[int],
    destinations: Sequence[int],
    weights: Sequence[int] | None,
    size: int,
) -> list[Edge]:
    """Return the edges that a rank lists: degrees[k] ones begin at sources[k]. weights: None: all are 1. Raises MPIError:
    ERR_RANK and ERR_ARG."""
    _check_ranks((*sources, *destinations), size)
    if len(degrees) != len(sources) or any(degree < 0 for degree in degrees) or sum(degrees) != len(destinations):
        raise ArgumentValueError(
            ERR_ARG, f"degrees {list(degrees)} do not fit {len(sources)} sources and {len(destinations)} destinations"
        )
    if weights is not None and len(weights) != len(destinations):
        raise ArgumentValueError(ERR_ARG, f"{len(weights)} weights for {len(destinations)} edges")
    begins = [source for source, degree in zip(sources, degrees, strict=True) for _ in range(degree)]
    return list(zip(begins, destinations, weights or [1] * len(destinations), strict=True))


def edges_of(rank: int, edges: Sequence[Edge], is_weighted: bool) -> DistributedGraph:
    """Select the edges of a rank from those of all ranks."""
    incoming = [(source, weight) for source, destination, weight in edges if destination == rank]
    outgoing = [(destination, weight) for source, destination, weight in edges if source == rank]
    weights = tuple(weight for _, weight in incoming), tuple(weight for _, weight in outgoing)
    return DistributedGraph(
        tuple(source for source, _ in incoming),
        tuple(destination for destination, _ in outgoing),
        weights if is_weighted else None,
    )


def _check_ranks(ranks: Sequence[int], size: int) -> None:
    for rank in ranks:
        if not 0 <= rank < size:
            raise MPIError(ERR_RANK, f"rank must be 0 to {size - 1}, got {rank}")
