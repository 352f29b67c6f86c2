"""The datapath and impairments of each link: the result of declaration, injections and datapath selection.

Plain data: `link_decisions` computes it, and the planner makes the kernel match it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import Datapath, Impairment

UNIMPAIRED = Impairment()


@dataclass(frozen=True, slots=True)
class LinkService:
    """The datapath and impairments of one link.

    forward, backward: the declared impairment overlaid with the injected ones. down: whether the link is cut: both
    directions lose all frames, and the NICs at its ends have no carrier. gso: whether forward and backward forward GSO
    frames unsegmented.
    """

    datapath: Datapath = "direct"
    forward: Impairment = UNIMPAIRED
    backward: Impairment = UNIMPAIRED
    down: bool = False
    gso: tuple[bool, bool] = (False, False)

    @property
    def spliced(self) -> bool:
        """Whether the link's frames pass a datapath other than the kernel's direct one."""
        return self.datapath != "direct"


LinkServices: TypeAlias = Mapping[str, LinkService]
"""Link name -> its service. Missing links are direct and up."""

DIRECT_SERVICE = LinkService()
