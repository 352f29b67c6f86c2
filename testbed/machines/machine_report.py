"""Report of a machine: capabilities of its kernel and of this installation, its processors, memory and underlay."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from protocols.core.compiled_build import COMPILED, build
from testbed.errors import TestbedError
from testbed.kernel import rtnl_dump
from testbed.kernel.capability_probe import Capability, probe, probe_for_tunnels
from testbed.kernel.netlink import RouteSocket

DISTRIBUTION = "netns-testbed"


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Report of a machine. version: version of testbed. cores: number of usable processors. memory: bytes. underlay_mtu: MTU
    of the interface with its underlay address; 0 without one. capabilities: see `report`."""

    host_name: str
    version: str
    python: str
    kernel: str
    cores: int
    memory: int
    underlay_mtu: int
    capabilities: tuple[Capability, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MachineReport:
        """Parse the output of `dataclasses.asdict`."""
        return cls(**{**data, "capabilities": tuple(Capability(**capability) for capability in data["capabilities"])})

    def missing(self, name: str) -> Capability | None:
        """Return the capability with this name if it was probed and the machine lacks it, else None."""
        return next(
            (capability for capability in self.capabilities if capability.name == name and not capability.available),
            None,
        )


def report(underlay: str = "", *, complete: bool = True) -> MachineReport:
    """Examine this machine. underlay: its address in the network between machines, or empty. complete: whether to probe all
    capabilities, or only those that links to other machines need, which takes a seventh of the time."""
    return MachineReport(
        host_name=platform.node(),
        version=metadata.version(DISTRIBUTION),
        python=platform.python_version(),
        kernel=platform.release(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        underlay_mtu=underlay_mtu(underlay) if underlay else 0,
        capabilities=tuple(capabilities() if complete else probe_for_tunnels()),
    )


def underlay_mtu(address: str) -> int:
    """Return the MTU of the interface that has an address (without a prefix length). Raises TestbedError if none has it."""
    route = RouteSocket()
    try:
        addresses = rtnl_dump.addresses(route)
        index = next(
            (index for index, texts in addresses.items() if address in {text.partition("/")[0] for text in texts}), 0
        )
        if not index:
            raise TestbedError(f"no interface has the underlay address {address}")
        return rtnl_dump.interface(route, index).mtu
    finally:
        route.close()


def capabilities() -> list[Capability]:
    """Probe this machine's features in a scratch namespace, and examine this installation."""
    from testbed import packages  # imports protocols, which the report for bring-up does not need

    problems = packages.problems()
    protocols = Capability(
        "protocols", not problems, "; ".join(problems) or "no two packages clash", "runs, fates and rules", ""
    )
    compiled = Capability(
        "compiled",
        build() == COMPILED,
        f"the modules that run per frame and per event are {build()}",
        "quicker simulations; the same results without it",
        "install it with NETNS_TESTBED_COMPILE=1 and a C compiler (docs/internals/compiled.md)",
    )
    return [*probe(), protocols, compiled]
