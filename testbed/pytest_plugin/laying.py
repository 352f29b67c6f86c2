"""Impairments laid over a description as `inject` lays them over a running cluster: what is named counts, the rest stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.cluster.injections import places
from testbed.spec.elements import Impairments
from testbed.spec.resolving import resolve

if TYPE_CHECKING:
    from testbed.cluster.api import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """target, direction: as `RunningCluster.inject` takes them."""

    target: str
    impairments: Impairments
    direction: str = ""


def laid_over(description: Cluster, overlays: Iterable[Overlay], seed: int | None = None) -> Cluster:
    """The description with these, later ones over earlier ones, and another seed if one is said.

    Raises NotFoundError for a link that there is not, DescriptionError for what contradicts itself then.
    """
    layout = resolve(description)
    numbers = {link.name: number for number, link in enumerate(layout.links)}
    links = list(description.links)
    for overlay in overlays:
        for name, direction in places(layout, overlay.target, overlay.direction):
            link = links[numbers[name]]
            before: Impairments | None = getattr(link, direction)
            now = overlay.impairments if before is None else overlay.impairments.over(before)
            links[numbers[name]] = link.model_copy(update={direction: now})
    said = {name: getattr(description, name) for name in type(description).model_fields}
    return type(description)(**said | {"links": links} | ({} if seed is None else {"seed": seed}))
