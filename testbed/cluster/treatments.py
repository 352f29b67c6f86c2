"""How each link is carried now: what the declared and the injected impairments and the ladder of datapaths come to.

Plain data: whoever knows what is declared, injected and possible on this machine decides; the plan makes the kernel so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from testbed.spec.layout import Impairment

UNIMPAIRED = Impairment()


@dataclass(frozen=True, slots=True)
class Treatment:
    """How one link is carried now. forward and backward: what is in force, the declared impairment with what is injected
    laid over it. down: neither direction carries anything, and the NICs at its ends lose their carrier. pieces: whether
    forward and backward pass on TCP as its senders' kernels leave it, unfinished and in pieces."""

    datapath: Literal["direct", "netem", "tc", "relay"] = "direct"
    forward: Impairment = UNIMPAIRED
    backward: Impairment = UNIMPAIRED
    down: bool = False
    pieces: tuple[bool, bool] = (False, False)

    @property
    def spliced(self) -> bool:
        """Whether something stands between the link's two ends."""
        return self.datapath != "direct"


Treatments: TypeAlias = Mapping[str, Treatment]
"""Link name -> its treatment. A link that is not in it is direct and up."""

UNTREATED = Treatment()
