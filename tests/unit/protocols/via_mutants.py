"""VIA, and MPI on it, with one mistake each, which searches must find."""

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
    read_part = Pair._read_part

    def read_without_skipped_bytes(pair: Pair, immediate: int, take: object) -> None:
        skipped = pair._area_size - pair._read_pointer if immediate & 1 << 31 else 0
        read_part(pair, immediate, take)  # type: ignore[arg-type]
        pair.consumed -= skipped

    patch.setattr(Pair, "_read_part", read_without_skipped_bytes)


def never_asks_for_credit(patch: pytest.MonkeyPatch) -> None:
    post = Pair._post

    def post_all_but_credit_requests(
        pair: Pair, segments: object, remote: Segment, immediate: int, context: int | None
    ) -> None:
        if immediate == rdma_pairs.ASK:
            pair.released.pop()
        else:
            post(pair, segments, remote, immediate, context)  # type: ignore[arg-type]

    patch.setattr(Pair, "_post", post_all_but_credit_requests)


def reset_keeps_receives(patch: pytest.MonkeyPatch) -> None:
    flush = Card.flush

    def flush_all_but_receives(card: Card, vi: object, head: int = 0) -> None:
        receives, vi.receives = vi.receives, type(vi.receives)()  # type: ignore[attr-defined]  # a Vi
        flush(card, vi, head)  # type: ignore[arg-type]
        vi.receives = receives  # type: ignore[attr-defined]

    patch.setattr(Card, "flush", flush_all_but_receives)


def _view_without(patch: pytest.MonkeyPatch, check: str) -> None:
    """Omit one check of an access: "bounds" or "tag"."""

    def view_region(card: Card, ptag: int, segment: Segment, length: int, access: int = 0) -> memoryview:
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

    patch.setattr(Card, "view_region", view_region)


def beyond_region(patch: pytest.MonkeyPatch) -> None:
    _view_without(patch, "bounds")


def any_tag(patch: pytest.MonkeyPatch) -> None:
    _view_without(patch, "tag")


def announced_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingDisconnects, "start_timers", lambda disconnects, _now: disconnects.new.clear())


MPI_MUTANTS = [
    Mutant("credits lost", "bytes of the area that a wrap-around skips are never freed", credits_lost),
    Mutant("descLeft deadlock", "a sender out of descriptors does not ask for credit", never_asks_for_credit),
]
VERBS_MUTANTS = [
    Mutant("reset keeps receives", "a receive of a VI that was reset completes later", reset_keeps_receives),
    Mutant("beyond region", "an RDMA Write beyond its region is permitted", beyond_region),
    Mutant("any tag", "memory of a stale or foreign protection tag is accessible", any_tag),
]  # fmt: skip
CONNECTION_MUTANTS = [Mutant("announced once", "a lost disconnect is not repeated", announced_once)]
