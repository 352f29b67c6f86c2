"""Where and with what a run was made: what a figure needs beside its settings to be measured again."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from testbed.registry import versions

_PACKAGES = ("netns-testbed", "pyroute2", "pydantic")


def surroundings(packages: Collection[str] = _PACKAGES) -> Mapping[str, object]:
    """packages: whose versions are told."""
    return {
        "kernel": f"{platform.release()} {platform.version()}",
        "cpu": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg()[0],
        "python": sys.version,  # with its build: the same version may be a fifth faster or slower
        "versions": versions(packages),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
