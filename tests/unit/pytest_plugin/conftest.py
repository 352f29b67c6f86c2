"""Modules that inner runs of pytest share with this process."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Impair


@pytest.fixture(scope="session", autouse=True)
def _import_modules_of_inner_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import the modules of inner runs by a simulated run.

    pytester unloads modules that an inner run imports. The next run would import them again, with classes that differ from
    those of the objects in the registry, and would stall.
    """
    testbed.run(
        Cluster.star(2), "random", mode="sim", output=tmp_path_factory.mktemp("runs") / "imported", check=True,
        scenario=Scenario(name="loss", faults=[Impair(on="n1", at="1ms", loss="1%")]), settings={"messages": 4},
    )  # fmt: skip
