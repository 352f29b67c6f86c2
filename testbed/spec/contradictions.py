"""What cannot stand together in what one direction of a link is to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.spec.elements import Impairments
    from testbed.spec.layout import Impairment


def contradictions(
    said: Impairments | Impairment, frame: int = 0, settled: bool = False
) -> Iterator[tuple[str, str, str]]:
    """key, what was found, what was expected. frame: the largest in bytes that the direction has to carry.

    settled: nothing is open any more, so that a jitter of 0 is none; a description's jitter of 0 that was said takes
    only a default's jitter away, and its distribution may stay.
    """
    traced, table = said.distribution == "trace", said.distribution == "table"
    if said.jitter and not said.delay and not traced:
        yield "jitter", "jitter without a delay", "a delay beside it"
    if said.jitter and traced:
        yield "jitter", "a jitter beside the distribution 'trace'", "none: the trace's file says every delay itself"
    if said.distribution and not traced and (said.jitter is None or (settled and not said.jitter)):
        yield "distribution", "a distribution without jitter", "a jitter beside it"
    if (traced or table) and not said.jitter_file:
        yield "distribution", f"the distribution '{said.distribution}' without a file", "a jitter_file beside it"
    if said.jitter_file and not (traced or table):
        yield "jitter_file", "a jitter_file without its distribution", "the distribution 'table' or 'trace' beside it"
    if said.reorder and not said.delay and not traced:
        yield "reorder", "reorder without a delay", "a delay beside it, which the reordered frames skip"
    if said.rate and said.rate_trace:
        yield "rate_trace", "a rate_trace beside a rate", "one of them"
    if said.queue and said.queue_frames:
        yield "queue_frames", "queue_frames beside a queue in bytes", "one of them"
    if said.queue and 0 < said.queue < frame:
        yield "queue", f"{said.queue:,} bytes", f"room for one frame, {frame:,} bytes; a queue is in bytes"
    if said.corrupt_bits and not said.corrupt:
        yield "corrupt_bits", "corrupt_bits without corrupt", "the share of frames to corrupt beside it"
    if said.cell_overhead and not said.cell_size:
        yield "cell_overhead", "a cell_overhead without a cell_size", "a cell_size beside it"
