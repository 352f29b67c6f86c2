"""Directory for inner runs of pytest, and modules that they share with this process."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.pytest_plugin import cluster_life  # noqa: F401  # shared with inner runs, see `_import_modules_of_inner_runs`
from testbed.spec.fault_models import Impair
from tests import inner_pytest


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


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a directory for inner tests, without the settings of this suite."""
    pytester.makeini(inner_pytest.SETTINGS)
    return pytester
