"""Requirements of a test on the machine, which are checked by trying: ``cluster("star-4", requires="netem")``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from testbed.kernel import cgroups, loss_classifier
from testbed.kernel.capabilities import probe_capabilities
from testbed.kernel.userns import is_root
from testbed.pytest_plugin.marker import MarkerArguments, MarkerError


def _root() -> str:
    return "" if is_root() else "pytest does not run as root with all capabilities"


def _netem() -> str:
    return _root() or ("" if probe_capabilities().netem else probe_capabilities().missing_reason("netem"))


REQUIREMENTS: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "root": _root,
        "bpf": lambda: _root() or loss_classifier.probe(),
        "netem": _netem,
        "cgroup-cpu": lambda: cgroups.refusal(1.0, 0),
        "cgroup-memory": lambda: cgroups.refusal(0.0, 1 << 20),
        "two-cpus": lambda: "" if len(os.sched_getaffinity(0)) > 1 else "only one CPU is available",
        "ipv6": lambda: "" if os.path.exists("/proc/sys/net/ipv6") else "the kernel has no IPv6",
    }
)
"""Checks by name. Each returns the reason why this machine does not meet the requirement; empty if it does."""


@cache
def missing_reason(name: str) -> str:
    """Return the reason why this machine does not meet a requirement; empty if it does. Each is checked once. Raises
    MarkerError for an unknown requirement."""
    if name not in REQUIREMENTS:
        raise MarkerError(f"unknown requirement {name!r}; use one of {', '.join(REQUIREMENTS)}")
    return REQUIREMENTS[name]()


def unmet_requirement(arguments: MarkerArguments) -> str:
    """Return the reason why this machine does not meet the marker's requirements; empty if it does. Raises MarkerError."""
    for name in arguments.requires:
        if reason := missing_reason(name):
            return f"requires {name}: {reason}"
    absent = [program for program in arguments.programs if shutil.which(program) is None]
    return f"requires programs that are not installed: {', '.join(absent)}" if absent else ""
