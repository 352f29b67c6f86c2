"""The datapath and impairments of each link, as a result of declaration, injections and datapath selection.

`link_decisions` computes these plain data, and the planner makes the kernel match them.
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
    directions lose all frames, and the NICs at its ends have no carrier. gso: whether GSO frames are
    forwarded unsegmented, forward and backward.
    """

    datapath: Datapath = "direct"
    forward: Impairment = UNIMPAIRED
    backward: Impairment = UNIMPAIRED
    down: bool = False
    gso: tuple[bool, bool] = (False, False)

    @property
    def is_direct(self) -> bool:
        """Whether frames pass the link's veth pairs and bridge only."""
        return self.datapath == "direct"


LinkServices: TypeAlias = Mapping[str, LinkService]
"""Link name -> its service. A link that is missing has `DIRECT_SERVICE`."""

DIRECT_SERVICE = LinkService()
