"""References to workloads of tests on machines, as file and name."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import UnsupportedError
from testbed.pytest_plugin.marker import MarkerError, read_markers
from testbed.pytest_plugin.spread_under_test import workload_reference
from testbed.workloads.form import Comm, Node
from testbed.workloads.lookup import choose, file_of, lookup_text
from testbed.workloads.random_traffic import RandomTraffic


async def hello(_comm: Comm, _node: Node, *, times: int = 1) -> int:
    return times


def test_a_function_or_class_of_a_module_is_found_by_its_reference() -> None:
    assert workload_reference("pingpong") == "pingpong"
    assert workload_reference(hello) == f"{Path(__file__).absolute()}:hello"
    assert choose(workload_reference(hello), {"times": 3}).settings == {"times": 3}
    assert choose(workload_reference(RandomTraffic)).name == "RandomTraffic"


def test_workloads_without_a_reference_are_rejected() -> None:
    async def inner(_comm: Comm, _node: Node) -> None: ...

    for workload, name in ((inner, "inner"), (RandomTraffic(), "RandomTraffic")):
        with pytest.raises(
            UnsupportedError, match=f"^workload {name}: on several machines it must be a name, or a function or class"
        ):
            workload_reference(workload)


def test_a_machines_file_is_found_in_the_tests_directory() -> None:
    def machines_file(**keys: object) -> Path | None:
        return read_markers([pytest.mark.cluster("star-2", **keys).mark], Path("/tests")).machines

    assert machines_file(machines="lab.toml") == Path("/tests/lab.toml")
    assert machines_file() is None
    with pytest.raises(MarkerError, match="machines: found 5, expected a machines file"):
        machines_file(machines=5)


def test_the_path_of_a_workload_may_contain_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "run:1"
    folder.mkdir()
    file = folder / "hello.py"
    file.write_text("async def hello(comm, node): ...\n")
    assert choose(str(file)).name == str(file)
    assert choose(f"{file}:hello").name == "hello"
    assert file_of(f"{file}:hello") == file_of(str(file)) == file
    assert lookup_text(f"{file}:hello") == f"{file}:hello"
    assert lookup_text("./hello.py") == str(Path.cwd() / "hello.py")
    assert (lookup_text("pingpong"), file_of("pingpong")) == ("pingpong", None)
