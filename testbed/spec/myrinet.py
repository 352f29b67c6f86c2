"""What a link at one of Myrinet's switches cannot be asked to do to frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from testbed.spec.elements import Impairments
    from testbed.spec.layout import Impairment

_KEYS: Final = (
    "jitter", "distribution", "jitter_file", "rate_trace", "reorder", "queue", "queue_frames", "minimum_frame", "overhead",
    "cell_size", "cell_overhead",
)  # fmt: skip

WHY: Final = "a link of a Myrinet network has no queue and keeps the order of its frames"


def meaningless(said: Impairment | Impairments) -> list[str]:
    """The keys that such a link cannot have."""
    return [key for key in _KEYS if getattr(said, key)]
