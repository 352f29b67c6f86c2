"""`testbed machines check`: logins, workers, and failures.

With TESTBED_LONG=1 a worker is idle for longer than its silence time-out, kept alive by its controller.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from testbed.cli.documents import schema_of
from tests.live.machine_state import eventually
from tests.live.machines_lab import NAMES, Lab, lab
from tests.live.testbed_command import assert_error

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd")]


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab")) as running_lab:
        yield running_lab


def check(machines: Lab, text: str) -> dict[str, dict[str, object]]:
    """Check the machines of a file; return the findings by machine."""
    (machines.folder / "other.toml").write_text(text)
    done = machines.testbed("machines", "check", "--json", "other.toml")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of("machines-check"))
    findings = {machine["name"]: machine for machine in document["machines"]}
    assert done.returncode == (0 if all(machine["usable"] for machine in findings.values()) else 1)
    return findings


def test_every_machine_reports_its_capabilities(machines: Lab) -> None:
    done = machines.testbed("machines", "check", "lab.toml")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ") and line] == ["a: yes", "b: yes", "c: yes"]
    assert sum("network namespaces" in line and line.strip().startswith("yes") for line in lines) == 3


def unusable_machines(machines: Lab) -> dict[str, dict[str, object]]:
    """Return the configuration of unusable machines, named for their defect; all have machine a's address."""
    old, bare = another_python(machines.folder, "old-python", "0.0.1"), machines.folder / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    return {
        "closed": {"port": 2222},
        "unresolved": {"address": "no-such-machine.invalid"},
        "refused": {"key": "other_key"},
        "keyless": {"key": "missing"},
        "old": {"python": old},
        "bare": {"python": str(bare)},
        "pythonless": {"python": "/nowhere/python"},
        "small": {"cores": 10_000, "memory": "1TiB", "underlay_mtu": 9000, "underlay": machines.address("a")},
        "elsewhere": {"underlay": "10.77.0.1"},
    }


def another_python(folder: Path, name: str, version: str) -> str:
    """Write a Python wrapper with another version of testbed among its packages; return its path."""
    metadata = folder / f"{name}-packages" / f"netns_testbed-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: netns-testbed\nVersion: {version}\n")
    program = folder / name
    program.write_text(f'#!/bin/sh\nPYTHONPATH={metadata.parent} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_unusable_machines_are_reported_and_left_clean(machines: Lab) -> None:
    local = machines.address("a")
    unusable = unusable_machines(machines)
    others = {name: {"address": local, "underlay": None, **keys} for name, keys in unusable.items()}
    actual = check(machines, machines.file(["b", *unusable], **others))
    assert {name for name, machine in actual.items() if machine["usable"]} == {"b"}
    problems = {name: str(machine["problem"]) for name, machine in actual.items()}
    assert all("\n" not in problem for problem in problems.values())
    assert problems["closed"] == f"machine closed ({local}:2222) cannot be reached: Connection refused"
    assert problems["unresolved"].startswith("machine unresolved (no-such-machine.invalid:22) cannot be reached: ")
    assert problems["refused"].startswith(f"machine refused ({local}:22) refuses the login of root: ")
    assert problems["keyless"] == f"machine keyless: there is no key {machines.folder}/missing"
    assert f"{machines.folder}/old-python there has testbed 0.0.1, and this is testbed " in problems["old"]
    assert "bare-python there does not have testbed" in problems["bare"]
    assert problems["pythonless"].endswith(("not found", "No such file or directory"))
    assert "cores, and the file says 10000" in problems["small"]
    assert "GiB of memory, and the file says 1TiB" in problems["small"]
    assert "has the MTU 1,500, and the file says 9,000" in problems["small"]
    assert "no interface has the underlay address 10.77.0.1" in problems["elsewhere"]
    eventually(lambda: machines.programs("a") == [], "no program is left on the machine")
    report = actual["b"]["report"]
    assert isinstance(report, dict)
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["underlay_mtu"] == 1500


UNPRIVILEGED_PYTHON = """#!/bin/sh
exec unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all "$@"' sh {python} "$@"
"""
"""A Python without capabilities, in a user namespace that allows no further ones."""


@pytest.mark.requires("userns")
def test_a_machine_without_root_and_user_namespaces_is_reported(machines: Lab) -> None:
    wrapper = machines.folder / "bound-python"
    wrapper.write_text(UNPRIVILEGED_PYTHON.format(python=sys.executable))
    wrapper.chmod(0o755)
    text = machines.file("ab", b={"python": str(wrapper)})
    actual = check(machines, text)
    assert actual["a"]["usable"]
    assert str(actual["b"]["problem"]).startswith("it cannot make network namespaces: ")
    done = machines.testbed("machines", "up", "other.toml", "star-4")
    assert_error(done, 3, "machine b: it cannot make network namespaces: ")
    for name in "ab":
        eventually(lambda name=name: machines.programs(name) == [], f"no program is left on machine {name}")  # type: ignore[misc]
        assert machines.namespaces(name) == []


@pytest.mark.parametrize(
    ("key_file", "words"),
    [("", "is not in known_hosts"), ("other_key.pub", "its host key differs from the key in known_hosts")],
)
def test_an_unknown_or_changed_host_key_is_rejected_and_not_added(machines: Lab, key_file: str, words: str) -> None:
    file = machines.home / ".ssh/known_hosts"
    before = file.read_text()
    other_keys = [line for line in before.splitlines() if not line.startswith(f"{machines.address('a')} ")]
    if key_file:
        kind, key = (machines.folder / key_file).read_text().split()[:2]
        other_keys.append(f"{machines.address('a')} {kind} {key}")
    file.write_text("\n".join(other_keys) + "\n")
    try:
        assert words in str(check(machines, machines.file("a"))["a"]["problem"])
        assert file.read_text() == "\n".join(other_keys) + "\n"
    finally:
        file.write_text(before)


def test_errors_in_a_machines_file_are_reported(machines: Lab) -> None:
    (machines.folder / "wrong.toml").write_text(machines.file(a={"prot": 22}, b={"memory": "much"}))
    done = machines.testbed("machines", "check", "wrong.toml")
    assert_error(done, 2, "2 problems", "did you mean 'port'?")


CONTROLLER = """
import os
import time
from testbed.machines.remote_workers import call_each, workers
from testbed.machines.request_reader import KEEPALIVE_INTERVAL, SILENCE
from testbed.spec.machines import load
with workers(load("lab.toml").machines) as running:
    call_each(running, "clusters")
    time.sleep(SILENCE + 1 if os.environ.get("TESTBED_LONG") else KEEPALIVE_INTERVAL)
    call_each(running, "clusters")
    print("up", flush=True)
    time.sleep(60)
"""


def test_each_machine_has_one_worker_that_ends_with_its_connection(machines: Lab) -> None:
    with machines.at_desk(sys.executable, "-c", CONTROLLER) as controller:
        try:
            assert controller.stdout is not None
            assert controller.stdout.readline() == "up\n"
            for name in NAMES:
                assert len(machines.programs(name)) == 1
                assert machines.listening(name) == {22}
        finally:
            controller.kill()
    for name in NAMES:
        eventually(lambda name=name: machines.programs(name) == [], f"no worker is left on machine {name}")  # type: ignore[misc]
