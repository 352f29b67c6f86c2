"""Machines files: their content, and reports of all errors at once."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from testbed.errors import DescriptionError
from testbed.spec.loader import table_of
from testbed.spec.machines import Machine, Machines, json_schema, load, parse

LAB = """
[[machine]]
name = "lab1"
address = "lab1.example.org"
user = "root"
port = 2222
key = "keys/lab"
cores = 8
memory = "16GiB"
underlay = "192.168.7.1"
underlay_mtu = 9000

[[machine]]
name = "lab2"
key = "~/.ssh/lab"
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        parse(table_of(text, "lab.toml"), "lab.toml")
    return [str(problem) for problem in caught.value.problems]


def test_a_file_is_read_with_its_quantities_and_the_paths_of_its_keys(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(LAB)
    first, second = load(tmp_path / "lab.toml").machines
    assert (first.name, first.address, first.user, first.port) == ("lab1", "lab1.example.org", "root", 2222)
    assert (first.cores, first.memory, first.underlay, first.underlay_mtu) == (8, 16 * 2**30, "192.168.7.1", 9000)
    assert first.key == str(tmp_path / "keys/lab")
    assert second.key == str(Path.home() / ".ssh/lab")
    assert (second.address, second.port, second.python) == (None, None, "python3")


def test_the_schema_and_the_parser_accept_the_same_files() -> None:
    jsonschema.validate(table_of(LAB, "lab.toml"), json_schema())
    for invalid in ({}, {"machine": []}, {"machine": [{"nam": "a"}]}, {"machine": [{"name": "a", "port": 0}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(invalid, json_schema())
        with pytest.raises(DescriptionError):
            parse(invalid)


def test_all_errors_are_reported_at_once_with_the_nearest_key() -> None:
    problems = problems_of(
        '[[machine]]\nname = "a"\nprot = 22\ncores = 0\n[[machine]]\nname = "b"\nunderlay = "10.0.0.1/24"\n'
    )
    assert len(problems) == 3
    assert any("unknown key 'prot'" in line and "did you mean 'port'?" in line for line in problems)
    assert any(line.startswith("machine[1] (a).cores: found 0") for line in problems)
    assert any(line.startswith("machine[2] (b).underlay: found '10.0.0.1/24'") for line in problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no machine"),
        ("[machine]\nname = 'a'", "tables that begin with [[machine]]"),
        ("[[machine]]\nname = 'a'\n[[machine]]\nname = 'a'", "another name for each machine"),
        (
            "[[machine]]\nname = 'a'\nunderlay = '10.0.0.1'\n[[machine]]\nname = 'b'\nunderlay = '10.0.0.1'",
            "another underlay for each machine",
        ),
        (
            "[[machine]]\nname = 'a'\nunderlay = '10.0.0.1'\n[[machine]]\nname = 'b'\nunderlay = 'fd00::1'",
            "one version for all machines",
        ),
        ("[[machine]]\nname = 'a'\naddress = '-oProxyCommand=x'", "does not begin with '-'"),
        *[
            (f"[[machine]]\nname = 'a'\nunderlay = '{address}'", "not loopback")
            for address in ("127.0.0.1", "255.255.255.255", "fd00::1%eth0", "::ffff:127.0.0.1")
        ],
        ("[[machine]]\nname = 'a'\nunderlay_mtu = 100", "at least 576"),
        ("[[machines]]\nname = 'a'", "did you mean 'machine'?"),
    ],
)
def test_an_invalid_machine_is_rejected_with_the_reason(text: str, message: str) -> None:
    assert any(message in line for line in problems_of(text))


def test_a_key_below_an_unknown_home_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text('[[machine]]\nname = "a"\nkey = "~nobody-of-that-name/id"\n')
    with pytest.raises(DescriptionError) as caught:
        load(tmp_path / "lab.toml")
    (problem,) = caught.value.problems
    assert str(problem).startswith("machine[1] (a).key: found '~nobody-of-that-name/id'")


def test_unknown_keys_are_reported_in_the_order_of_the_file() -> None:
    names = ["maschine", "zone", "apple", "lab"]
    problems = problems_of("\n".join(f"{name} = 1" for name in names) + '\n[[machine]]\nname = "a"\n')
    assert [problem.split("'")[1] for problem in problems] == names


def test_machines_can_be_constructed_in_python() -> None:
    machines = Machines(machines=[Machine(name="a"), Machine(name="b", memory="1GiB")])
    assert [machine.memory for machine in machines.machines] == [None, 2**30]
    with pytest.raises(DescriptionError, match="another name for each machine"):
        Machines(machines=[Machine(name="a"), Machine(name="a")])
