"""Requirements of a layout on this machine and on the testbed's limits, checked before anything changes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

from testbed.cluster.records.state import default_root
from testbed.errors import UnsupportedError
from testbed.kernel import cgroups
from testbed.spec.layout import ConfiguredDatapath, Layout

_SYSCTL = "user.max_net_namespaces"
_NAMESPACES = Path("/proc/sys", *_SYSCTL.split("."))

MAX_ENTRIES = 1_000_000
"""Maximum number of forwarding entries of all switches together. The kernel takes seconds to add so many, and stores 128
bytes for each."""

_FILES_PER_NAMESPACE = 2  # open while the cluster is built


def check_supported(layout: Layout, asked: ConfiguredDatapath = "auto") -> None:
    """Raise UnsupportedError with every reason why this layout cannot be brought up here.

    asked: the datapath of links that do not specify one.
    """
    reasons = [*_exceeded_limits(layout), *_node_problems(layout), *_missing_datapaths(layout, asked)]
    if reasons:
        raise UnsupportedError(
            "\n".join([f"{layout.name} cannot be brought up:", *(f"  {reason}" for reason in reasons)])
        )


def _exceeded_limits(layout: Layout) -> list[str]:
    """Return a message for each limit of the testbed or this machine that the layout exceeds."""
    reasons = []
    entries = sum(len(switch.forwarding) for switch in layout.switches)
    if entries > MAX_ENTRIES:
        cyclic = sum(not switch.learns for switch in layout.switches)
        reasons.append(
            f"its {cyclic:,} switches that form cycles need {entries:,} forwarding entries, one on each for every NIC, and "
            f"{MAX_ENTRIES:,} are allowed: use fewer nodes or switches, or switches without cycles, which learn addresses"
        )
    namespaces = len(layout.nodes) + 1
    allowed = int(_NAMESPACES.read_text()) if _NAMESPACES.exists() else namespaces
    if namespaces > allowed:
        reasons.append(
            f"it needs {namespaces:,} network namespaces, and this machine allows {allowed:,} (sysctl {_SYSCTL})"
        )
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files != resource.RLIM_INFINITY and _FILES_PER_NAMESPACE * namespaces > open_files:
        reasons.append(
            f"its {len(layout.nodes):,} nodes need {_FILES_PER_NAMESPACE * namespaces:,} open files while they are made, "
            f"and a process here may have {open_files:,} (ulimit -Hn)"
        )
    return reasons


def _node_problems(layout: Layout) -> list[str]:
    """Return a message for each requirement of a node that this machine does not meet."""
    reasons = []
    available = os.sched_getaffinity(0)
    for node in layout.nodes:
        if missing := sorted(set(node.cpus) - available):
            present = _format_ranges(available)
            reasons.append(
                f"node {node.name}: this machine has no CPU {_format_ranges(missing)} for it (it has {present})"
            )
        if refusal := cgroups.refusal(node.cpu_share, node.memory):
            reasons.append(f"node {node.name}: its CPU share or memory limit cannot be kept: {refusal}")
        for target in node.files:
            if refusal := _file_problem(Path(target)):
                reasons.append(f"node {node.name}: {target} {refusal}")
        for target in node.private_directories:
            if refusal := _directory_problem(Path(target)):
                reasons.append(f"node {node.name}: {target} {refusal}")
    return reasons


def _missing_datapaths(layout: Layout, asked: ConfiguredDatapath) -> list[str]:
    """Return a message for each datapath that is requested by name and not available here, even if no link uses it yet.

    Links of modelled networks are skipped, because only the relay carries them.
    """
    origins: dict[str, str] = {}
    for link in layout.links:
        if link.model is None:
            if link.datapath == "auto":
                origins.setdefault(asked, f"'--datapath {asked}'")
            else:
                origins.setdefault(link.datapath, f'datapath = "{link.datapath}" of {link.name}')
    named = origins.keys() - {"auto", "direct"}
    if not named:
        return []
    # These import encoders that an unimpaired cluster does not need.
    from testbed.kernel.capabilities import probe_capabilities
    from testbed.kernel.datapaths import unavailable_reason

    capabilities = probe_capabilities()
    return [
        f"{origin} is not possible: {reason}; 'testbed doctor' shows how to enable it, and without it testbed selects a "
        "datapath for each link"
        for datapath, origin in origins.items()
        if datapath in named and (reason := unavailable_reason(datapath, capabilities))
    ]


def _file_problem(target: Path) -> str:
    """Return why a file cannot be mounted at this path; empty if it can."""
    if target.parts[1:2] in (("proc",), ("sys",), ("dev",)):
        return "is in a file system of the kernel: no file can be mounted there"
    try:
        if target.is_dir():
            return "is a directory on this machine: a file cannot be mounted over it"
        if not target.exists() and len(target.parts) > 1 and not Path("/", target.parts[1]).is_dir():
            return "is in a top-level directory that this machine does not have"
    except OSError as error:
        return f"cannot be a file on this machine: {error.strerror}"
    return ""


def _directory_problem(target: Path) -> str:
    """Return why a directory cannot be mounted at this path; empty if it can."""
    if target.parts[1:2] in (("proc",), ("sys",), ("dev",)):
        return "is in a file system of the kernel: no directory can be mounted there"
    if (root := default_root()).is_relative_to(target):
        return f"contains {root}, which programs in nodes need"
    try:
        if target.exists() and not target.is_dir():
            return "is a file on this machine: a directory cannot be mounted over it"
        if not Path("/", target.parts[1]).is_dir():
            return "is in a top-level directory that this machine does not have"
    except OSError as error:
        return f"cannot be a directory on this machine: {error.strerror}"
    return ""


def _format_ranges(cpus: Iterable[int]) -> str:
    """Format CPU numbers like the kernel: "0-3,6"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)
