"""The datapaths of this suite: brought up at their first use, in a sandbox, and kept for all its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kernel.userns import is_root
from tests.live import sandbox
from tests.live.machine_state import Machine
from tests.semantics.datapaths import DatapathsUnderTest, Line
from tests.semantics.impairment_checks import CheckedImpairment, placed_at


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select only netem's tests in the virtual machine, which is slow."""
    if not os.environ.get("TESTBED_VM"):
        return
    folder = Path(__file__).parent
    other_items = [item for item in items if item.path.is_relative_to(folder) and "netem" not in item.name]
    config.hook.pytest_deselected(items=other_items)
    items[:] = [item for item in items if item not in other_items]


@pytest.fixture(scope="session", autouse=True)
def _sandbox() -> None:
    if is_root():
        sandbox.enter()


@pytest.fixture(scope="session")
def datapaths(_sandbox: None) -> Iterator[DatapathsUnderTest]:
    """Yield the datapaths; check at the end that the machine is as before."""
    machine = Machine() if is_root() else None
    datapaths = DatapathsUnderTest()
    yield datapaths
    datapaths.close()
    if machine is not None:
        try:
            machine.assert_unchanged("left behind by the suite", deadline=30)
        finally:
            if machine.has_leftovers:
                machine.clear()


@pytest.fixture
def line(request: pytest.FixtureRequest, datapaths: DatapathsUnderTest, tmp_path: Path) -> Iterator[Line]:
    """Yield the line that `impairment_checks.on` requests. Files that an impairment names are in the test's directory."""
    checked: CheckedImpairment = request.param
    texts: dict[str, str] = {}
    forward, backward = checked.forward, checked.backward
    for name, text in checked.files:
        path = tmp_path / name
        path.write_text(text)
        texts[str(path)] = text
        forward, backward = (placed_at(impairment, name, str(path)) for impairment in (forward, backward))
    with datapaths[checked.datapath].impaired(forward, backward, files=texts) as impaired_line:
        yield impaired_line
