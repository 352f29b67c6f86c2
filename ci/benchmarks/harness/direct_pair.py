"""Two nodes on one pair of interfaces, without redirection between them."""

from __future__ import annotations

from testbed import Cluster


def direct_pair() -> Cluster:
    """Return a back-to-back cluster whose link is declared direct."""
    pair = Cluster.back_to_back()
    links = tuple(link.model_copy(update={"datapath": "direct"}) for link in pair.links)
    return pair.model_copy(update={"links": links})
