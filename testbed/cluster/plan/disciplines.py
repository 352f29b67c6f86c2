"""Queueing disciplines and loss classifiers for links that the kernel impairs.

Forward frames arrive on A and leave by B. netem or a token bucket is the root qdisc of the interface by which a direction
enters the stage between A and B. The classifier that loses frames of a direction is on the ingress hook of the interface
on which they arrive, A for forward and B for backward, before the redirection.

Like the planner, this module performs no I/O: the texts of distribution files are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from testbed.cluster.plan.kernel_operations import SetLoss, SetNetem, SetShaper
from testbed.cluster.plan.link_services import LinkService
from testbed.cluster.plan.veth_wiring import Device, Stage
from testbed.fates import fate_hash
from testbed.fates.text_files import text_of
from testbed.fields import known_fields
from testbed.kernel import loss_classifier, netem, shapers
from testbed.kernel.qdiscs import Qdisc
from testbed.kernel.rtnl_dump import Contents

Discipline: TypeAlias = SetNetem | SetShaper | SetLoss
"""An operation that sets a direction's qdisc (netem or a shaper) or loss classifier."""


def disciplines(
    name: str,
    link_service: LinkService,
    before: LinkService | None,
    stage: Stage,
    index: Callable[[Device], int],
    *,
    mtu: int,
    seed: int,
    files: Mapping[str, str],
) -> list[Discipline]:
    """Derive the classifiers of a link's free ends and the qdiscs of its stage.

    before: the link's previous service, if known. index: returns a device's interface index. mtu: MTU of the link. seed:
    the cluster's. files: path -> text.

    Raises UnsupportedError for impairments that the datapath does not support, BrokenFileError and NotFoundError for files.
    """
    desired: list[Discipline] = []
    directions = (
        ("forward", link_service.forward, before.forward if before else None, stage.a, stage.forward),
        ("backward", link_service.backward, before.backward if before else None, stage.b, stage.backward),
    )
    for direction, impairment, earlier, ingress, egress in directions:
        key = fate_hash.direction_key(seed, name, direction)
        if link_service.datapath == "netem" and impairment:
            table = text_of(files, impairment.jitter_file) if impairment.jitter_file else ""
            options = netem.options_of(impairment, mtu=mtu, seed=key, table=table)
            # The kernel does not report the table of a distribution.
            changed = before is not None and before.datapath == "netem" and earlier != impairment
            desired.append(SetNetem(egress[1], index(egress), impairment, options, changed))
        if link_service.datapath == "tc" and impairment.rate:
            was_shaped = before is not None and before.datapath == "tc" and earlier is not None and earlier.rate
            old = shapers.options_of(earlier, mtu=mtu) if was_shaped and earlier is not None else None
            new = shapers.options_of(impairment, mtu=mtu)
            desired.append(SetShaper(egress[1], index(egress), impairment, new, old))
        if link_service.datapath == "tc" and (impairment.loss or impairment.gemodel or impairment.loss_pattern):
            losses = loss_classifier.losses_of(key, impairment, known_fields())
            desired.append(SetLoss(ingress[1], index(ingress), impairment, losses))
    return desired


def can_change_in_place(desired: SetNetem | SetShaper, qdisc: Qdisc | None) -> bool:
    """Whether the existing qdisc can be changed without replacing it."""
    if qdisc is None or not _is_ours(desired, qdisc):
        return False
    if isinstance(desired, SetNetem):
        return True
    return desired.before is None or desired.before.in_frames == desired.options.in_frames


def _is_ours(desired: SetNetem | SetShaper, qdisc: Qdisc) -> bool:
    """Whether the testbed has set the qdisc, and it is of the desired kind."""
    module = netem if isinstance(desired, SetNetem) else shapers
    return (qdisc.kind, qdisc.handle) == (module.KIND, module.HANDLE)


def is_in_force(desired: Discipline, wire: Contents) -> bool:
    """Whether the kernel reports the desired settings already."""
    if isinstance(desired, SetLoss):
        return wire.classifiers.get(desired.index) == loss_classifier.name_of(desired.losses)
    qdisc = wire.qdiscs.get(desired.index)
    if qdisc is None or not _is_ours(desired, qdisc) or qdisc.has_size_table != (desired.options.sizes is not None):
        return False
    if isinstance(desired, SetShaper):
        is_unchanged = desired.before is None or desired.before == desired.options
        return is_unchanged and desired.options.matches(shapers.decode(qdisc.options))
    reported, reportable = netem.decode(qdisc.options), desired.options.reportable
    # Kernels before 6.6 have no seed.
    return not desired.changed and reported in (reportable, replace(reportable, seed=None))
