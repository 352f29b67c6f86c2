"""VIA, and MPI on it, with one mistake each, for searches that must find it."""

from __future__ import annotations

import pytest

from protocols.core.memory import HostMemory
from protocols.mpi.via import rdma_pairs
from protocols.mpi.via.rdma_pairs import Pair
from protocols.via.card import Card, Region, ViolationError
from protocols.via.pending_disconnects import PendingDisconnects
from protocols.via.vip_descriptors import Segment
from tests.unit.protocols.mutants import Mutant


def credits_lost(patch: pytest.MonkeyPatch) -> None:
    original = Pair._read_part

    def without_what_was_skipped(pair: Pair, immediate: int, take: object) -> None:
        skipped = pair._area_size - pair._read_pointer if immediate & 1 << 31 else 0
        original(pair, immediate, take)  # type: ignore[arg-type]  # as it came
        pair.consumed -= skipped

    patch.setattr(Pair, "_read_part", without_what_was_skipped)


def never_asks(patch: pytest.MonkeyPatch) -> None:
    post = Pair._post

    def all_but_questions(pair: Pair, segments: object, remote: Segment, immediate: int, context: int | None) -> None:
        if immediate == rdma_pairs.ASK:
            pair.released.pop()
        else:
            post(pair, segments, remote, immediate, context)  # type: ignore[arg-type]  # as they came

    patch.setattr(Pair, "_post", all_but_questions)


def reset_keeps_receives(patch: pytest.MonkeyPatch) -> None:
    flush = Card.flush

    def all_but_receives(card: Card, vi: object, head: int = 0) -> None:
        receives, vi.receives = vi.receives, type(vi.receives)()  # type: ignore[attr-defined]  # a Vi
        flush(card, vi, head)  # type: ignore[arg-type]
        vi.receives = receives  # type: ignore[attr-defined]

    patch.setattr(Card, "flush", all_but_receives)


def _reach_without(patch: pytest.MonkeyPatch, check: str) -> None:
    """Leave one check of an access out: "bounds" or "tag"."""

    def reach(card: Card, ptag: int, segment: Segment, length: int, access: int = 0) -> memoryview:
        region: Region | None = card.regions.get(segment.handle)
        if region is None or (region.ptag != ptag and check != "tag") or region.attributes & access != access:
            raise ViolationError
        offset = segment.address - region.address
        if offset < 0 or (offset + length > region.size and check != "bounds"):
            raise ViolationError
        assert isinstance(card.memory, HostMemory)
        region_bytes = memoryview(card.memory.view(region.address, region.size).obj)  # type: ignore[arg-type]  # a bytearray
        if offset + length > len(region_bytes):
            length = len(region_bytes) - offset
        return region_bytes[offset : offset + length]

    patch.setattr(Card, "reach", reach)


def beyond_region(patch: pytest.MonkeyPatch) -> None:
    _reach_without(patch, "bounds")


def any_tag(patch: pytest.MonkeyPatch) -> None:
    _reach_without(patch, "tag")


def told_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingDisconnects, "begin", lambda disconnects, _now: disconnects.new.clear())


MPI_MUTANTS = [
    Mutant("credits lost", "what a wrap-around skips of the area is never free again", credits_lost),
    Mutant("descLeft deadlock", "a sender out of descriptors does not ask", never_asks),
]
VERBS_MUTANTS = [
    Mutant("reset keeps receives", "a receive of a VI that was reset completes later", reset_keeps_receives),
    Mutant("beyond region", "an RDMA Write beyond its region is let through", beyond_region),
    Mutant("any tag", "memory of a stale or foreign protection tag is accessible", any_tag),
]  # fmt: skip
CONNECTION_MUTANTS = [Mutant("told once", "a peer that has lost a disconnect is not told again", told_once)]
