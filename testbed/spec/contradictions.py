"""Contradictions between the impairments of one direction of a link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from testbed.spec.elements import Impairments
    from testbed.spec.layout import Impairment


RATE_KEYS: Final = ("minimum_frame", "overhead", "cell_size")
NEEDS_RATE: Final = "a rate as well: the key sets a frame's size at the rate"


def contradictions(
    impairments: Impairments | Impairment, frame: int = 0, is_resolved: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the actual value and the expected value of each contradiction.

    frame: maximum frame size of the direction, bytes; 0: unknown. is_resolved: whether all defaults are applied. Then a
    jitter of 0 means none, and contradicts a distribution; in a description, an explicit jitter of 0 may just override the
    default, and a distribution may stay.
    """
    is_trace, is_table = impairments.distribution == "trace", impairments.distribution == "table"
    if impairments.jitter and not impairments.delay and not is_trace:
        yield "jitter", "jitter without a delay", "a delay as well"
    if impairments.jitter and is_trace:
        yield (
            "jitter",
            "a jitter together with the distribution 'trace'",
            "no jitter: the trace has the delay of each frame",
        )
    if (
        impairments.distribution
        and not is_trace
        and (impairments.jitter is None or (is_resolved and not impairments.jitter))
    ):
        yield "distribution", "a distribution without jitter", "a jitter as well"
    if (is_trace or is_table) and not impairments.jitter_file:
        yield "distribution", f"the distribution '{impairments.distribution}' without a file", "a jitter_file as well"
    if impairments.jitter_file and not (is_trace or is_table):
        yield "jitter_file", "a jitter_file without its distribution", "the distribution 'table' or 'trace' as well"
    if impairments.reorder and not impairments.delay and not is_trace:
        yield "reorder", "reorder without a delay", "a delay as well, which the reordered frames skip"
    if impairments.rate and impairments.rate_trace:
        yield "rate_trace", "a rate_trace together with a rate", "one of them"
    if impairments.queue and impairments.queue_frames:
        yield "queue_frames", "queue_frames together with a queue in bytes", "one of them"
    if impairments.queue and 0 < impairments.queue < frame:
        yield "queue", f"{impairments.queue:,} bytes", f"room for a frame of {frame:,} bytes or more"
    if impairments.corrupt_bits and not impairments.corrupt:
        yield "corrupt_bits", "corrupt_bits without corrupt", "the share of frames to corrupt as well"
    has_rate = impairments.rate is not None or impairments.rate_trace  # a declared rate of 0 is unlimited
    for key in RATE_KEYS if not has_rate and not is_resolved else ():
        if getattr(impairments, key):
            yield key, f"{key} without a rate", NEEDS_RATE
    if impairments.cell_overhead and not impairments.cell_size:
        yield "cell_overhead", "a cell_overhead without a cell_size", "a cell_size as well"
