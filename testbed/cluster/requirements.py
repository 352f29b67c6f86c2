"""What a layout needs that this version or this machine may not have: refused before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from testbed.errors import UnsupportedError
from testbed.kernel import cgroups
from testbed.spec.layout import Layout


def check_supported(layout: Layout) -> None:
    """UnsupportedError with every reason why this layout cannot be brought up here."""
    reasons = [*_switches(layout), *_nodes(layout)]
    if reasons:
        raise UnsupportedError(
            "\n".join([f"{layout.name} cannot be brought up:", *(f"  {reason}" for reason in reasons)])
        )


def _switches(layout: Layout) -> list[str]:
    kinds = sorted({switch.kind for switch in layout.switches if switch.kind not in ("ethernet", "myrinet")})
    return [
        f"its switches are of kind {kind}, which a description may have but which cannot be brought up yet "
        "(switches of Ethernet and of Myrinet can)"
        for kind in kinds
    ]


def _nodes(layout: Layout) -> list[str]:
    reasons = []
    available = os.sched_getaffinity(0)
    for node in layout.nodes:
        if missing := sorted(set(node.cpus) - available):
            there = _ranges(available)
            reasons.append(f"node {node.name}: this machine has no CPU {_ranges(missing)} for it (it has {there})")
        if refusal := cgroups.refusal(node.cpu_share, node.memory):
            reasons.append(f"node {node.name}: its CPU share or memory limit cannot be kept: {refusal}")
        for target in node.files:
            if refusal := _not_layable(Path(target)):
                reasons.append(f"node {node.name}: {target} {refusal}")
    return reasons


def _not_layable(target: Path) -> str:
    """Why a file cannot be laid there; empty when it can."""
    if target.parts[1:2] in (("proc",), ("sys",), ("dev",)):
        return "is the kernel's, no file can be laid there"
    try:
        if target.is_dir():
            return "is a directory on this machine, a file cannot be laid over it"
        if not target.exists() and len(target.parts) > 1 and not Path("/", target.parts[1]).is_dir():
            return "lies in a root directory that this machine does not have"
    except OSError as error:
        return f"cannot be a file on this machine: {error.strerror}"
    return ""


def _ranges(cpus: Iterable[int]) -> str:
    """ "0-3,6": as the kernel writes CPU lists."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)
