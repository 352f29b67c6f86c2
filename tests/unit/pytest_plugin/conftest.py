"""Imports before the plug-in's tests, so that inner runs of pytest share the modules."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Impair


@pytest.fixture(scope="session", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Perform a simulated run, which imports the modules of inner runs.

    pytester unloads the modules that an inner run imports. Objects in the registry would then have other classes than those
    of the next run, which would stall.
    """
    testbed.run(
        Cluster.star(2), "random", mode="sim", output=tmp_path_factory.mktemp("runs") / "imported", check=True,
        scenario=Scenario(name="loss", faults=[Impair(on="n1", at="1ms", loss="1%")]), settings={"messages": 4},
    )  # fmt: skip
