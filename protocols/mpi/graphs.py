"""Graph topologies: a graph that every rank passes completely, or whose edges the ranks pass in parts. MPI 4.1, section
8.5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as to_int
from typing import NamedTuple

from protocols.mpi.collectives.neighbourhoods import Neighbourhood
from protocols.mpi.mpi_errors import ERR_ARG, ERR_RANK, ArgumentValueError, MPIError

Edge = tuple[int, int, int]
"""Source, destination and weight."""


class Graph(NamedTuple):
    """A graph that all ranks know. ends: for each rank, the number of neighbours of all ranks up to it (MPI's index). edges:
    the neighbours of rank 0, then those of rank 1, and so on."""

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
        """Return the edges between a rank and its neighbours, in both directions. The graph must be symmetric, as MPI
        requires."""
        neighbours = self.neighbours(rank)
        return Neighbourhood(neighbours, neighbours, range(len(neighbours)))


class DistributedGraph(NamedTuple):
    """Edges of one rank in a graph. sources, destinations: ranks. weights: those of the incoming and of the outgoing edges;
    None for edges without weights."""

    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    weights: tuple[tuple[int, ...], tuple[int, ...]] | None

    def neighbourhood(self, _: int) -> Neighbourhood:
        """Return the edges. The rank is ignored, since all edges are those of one rank."""
        return Neighbourhood(self.sources, self.destinations, range(len(self.destinations)))


def make_graph(index: Sequence[int], edges: Sequence[int], size: int) -> Graph:
    """Make a graph of at most `size` ranks. index: `Graph.ends`, or with a 0 before them, as mpi4py allows. edges:
    `Graph.edges`. Raises MPIError: ERR_ARG if index does not fit the edges or the graph has too many ranks, ERR_RANK for an
    edge to a rank outside of the graph."""
    ends, neighbours = _to_ints(index), _to_ints(edges)
    if len(ends) > 1 and ends[0] == 0 and ends[-1] == len(neighbours):
        ends = ends[1:]
    if any(end < 0 for end in ends) or ends != sorted(ends) or (ends[-1] if ends else 0) != len(neighbours):
        raise MPIError(
            ERR_ARG,
            f"index must be 0 or more, not decrease, and end with the number of edges, {len(neighbours)}, got {ends}",
        )
    if len(ends) > size:
        raise MPIError(ERR_ARG, f"the graph must have at most the communicator's {size} ranks, got {len(ends)}")
    _check_ranks(neighbours, len(ends))
    return Graph(tuple(ends), tuple(neighbours))


def adjacent_edges(
    sources: Sequence[int] | None,
    destinations: Sequence[int] | None,
    source_weights: Sequence[int] | None,
    destination_weights: Sequence[int] | None,
    size: int,
) -> DistributedGraph:
    """Make the edges of one rank from its arguments. sources, destinations: None for no edges. source_weights,
    destination_weights: both None for edges without weights. size: of the communicator. Raises MPIError: ERR_RANK for an
    invalid rank, ERR_ARG if the numbers of weights and edges differ."""
    incoming, outgoing = tuple(_to_ints(sources)), tuple(_to_ints(destinations))
    _check_ranks((*incoming, *outgoing), size)
    if source_weights is None and destination_weights is None:
        return DistributedGraph(incoming, outgoing, None)
    weights = tuple(_to_ints(source_weights)), tuple(_to_ints(destination_weights))
    if (len(weights[0]), len(weights[1])) != (len(incoming), len(outgoing)):
        raise ArgumentValueError(
            ERR_ARG,
            f"{len(weights[0])} and {len(weights[1])} weights for {len(incoming)} sources and {len(outgoing)} "
            "destinations",
        )
    return DistributedGraph(incoming, outgoing, weights)


def listed_edges(
    sources: Sequence[int],
    degrees: Sequence[int],
    destinations: Sequence[int],
    weights: Sequence[int] | None,
    size: int,
) -> list[Edge]:
    """Return the edges that a rank lists, of which degrees[k] begin at sources[k]. weights: None for weights of 1. size: of
    the communicator. Raises MPIError: ERR_RANK for an invalid rank, ERR_ARG if the numbers of elements do not fit."""
    begins, counts, ends = _to_ints(sources), _to_ints(degrees), _to_ints(destinations)
    _check_ranks((*begins, *ends), size)
    if len(counts) != len(begins) or any(count < 0 for count in counts) or sum(counts) != len(ends):
        raise ArgumentValueError(
            ERR_ARG, f"degrees {counts} do not fit {len(begins)} sources and {len(ends)} destinations"
        )
    edge_weights = [1] * len(ends) if weights is None else _to_ints(weights)
    if len(edge_weights) != len(ends):
        raise ArgumentValueError(ERR_ARG, f"{len(edge_weights)} weights for {len(ends)} edges")
    edge_sources = [source for source, count in zip(begins, counts, strict=True) for _ in range(count)]
    return list(zip(edge_sources, ends, edge_weights, strict=True))


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


def _to_ints(values: Iterable[int] | None) -> list[int]:
    """Convert a sequence of integers, which may be a NumPy array, to a list; None to an empty list."""
    return [] if values is None else [to_int(value) for value in values]


def _check_ranks(ranks: Sequence[int], size: int) -> None:
    for rank in ranks:
        if not 0 <= rank < size:
            raise MPIError(ERR_RANK, f"rank must be 0 to {size - 1}, got {rank}")
