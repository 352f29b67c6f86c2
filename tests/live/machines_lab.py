"""Fixture-like machines of `local_machines`, with a check that nothing of them is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import local_machines
from local_machines import NAMES, Lab
from testbed import Cluster
from tests.live.machine_state import Machine

__all__ = ["NAMES", "Lab", "lab"]


@contextmanager
def lab(folder: Path, cluster: Cluster | None = None, names: Sequence[str] = NAMES) -> Iterator[Lab]:
    """Run machines as `local_machines.lab` does; assert that nothing of them is left at the end."""
    before = Machine()
    with local_machines.lab(folder, cluster, names) as machines:
        yield machines
    before.assert_unchanged("left behind by the machines")
