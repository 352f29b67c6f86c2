"""Damaged state files: commands report them, keep other clusters intact and can remove the damaged cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from testbed import Cluster
from testbed.cluster.faults.injections import Injection
from testbed.cluster.records.state import State, Store
from testbed.kernel.processes import Identity, identity
from testbed.runtime.supervision import running_supervisor
from tests.live import file_damage
from tests.live.file_damage import run_command
from tests.live.machine_state import Machine

DAMAGED, OTHER = "damaged", "intact"

LONG = bool(os.environ.get("TESTBED_LONG"))
SEEDS = range(300 if LONG else 6)


def file(name: str = "state.json") -> Path:
    return Store().directory(DAMAGED) / name


def state() -> State:
    current = Store().read(DAMAGED)
    assert current is not None
    return current


@pytest.fixture
def two_clusters(machine: Machine) -> Machine:
    for name in (DAMAGED, OTHER):
        Cluster.star(2).up(name, keep=True)
    return machine


def nested_lists(path: Path) -> None:
    path.write_text("[" * 100_000)


def long_number(path: Path) -> None:
    path.write_text('{"format": 4, "created": ' + "9" * 5_000 + "}")


def wrong_type(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "created": "long ago"}))


def state_of_other_cluster(path: Path) -> None:
    path.write_text((Store().directory(OTHER) / "state.json").read_text())


def invalid_utf8(path: Path) -> None:
    path.write_bytes(b"\xff" + path.read_bytes())


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = (nested_lists, long_number, wrong_type, state_of_other_cluster, invalid_utf8, directory, fifo)


@pytest.mark.usefixtures("two_clusters")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_reported_and_does_not_hide_other_clusters(damage: Callable[[Path], None]) -> None:
    damage(file())
    for arguments in (
        ("exec", "--name", DAMAGED, "n1", "true"),
        ("inject", "--name", DAMAGED, "all", "--loss", "1%"),
        ("up", "star-2", "--name", DAMAGED),
    ):
        result = run_command(*arguments)
        assert (result.code, result.is_clean_exit) == (1, True), result
        assert f"{DAMAGED}/state.json cannot be understood" in result.text
    shown = run_command("status")
    assert shown.is_clean_exit
    assert shown.code == 1
    assert f"{OTHER} (" in shown.text
    assert f"{DAMAGED}/state.json cannot be understood" in shown.text
    collected = run_command("gc")
    assert collected.code == 0, collected
    assert f"removed cluster {DAMAGED}: its state is missing or unreadable" in collected.text
    assert OTHER not in collected.text
    assert Store().names() == [OTHER]
    assert run_command("down").code == 0


@pytest.mark.usefixtures("machine")
def test_commands_do_not_block_on_a_named_pipe_instead_of_the_event_log() -> None:
    Cluster.star(2).up(DAMAGED, keep=True)
    assert run_command("inject", "--name", DAMAGED, "n1", "--delay", "1ms").code == 0
    file("events.jsonl").unlink()
    os.mkfifo(file("events.jsonl"))
    for code, arguments in ((1, ("events",)), (7, ("inject", "n2", "--loss", "1%")), (7, ("heal",))):
        result = run_command(arguments[0], "--name", DAMAGED, *arguments[1:], seconds=20)
        assert (result.code, result.is_clean_exit) == (code, True), (arguments, result)
        assert "events.jsonl" in result.text, arguments
    assert run_command("status").is_clean_exit
    assert run_command("down", "--name", DAMAGED).code == 0


@pytest.mark.usefixtures("two_clusters")
def test_down_removes_a_cluster_with_a_damaged_state() -> None:
    nested_lists(file())
    assert run_command("down", "--name", DAMAGED).code == 0
    assert run_command("down").code == 0


REPLACED_FILES = [("relay.json", directory), ("lock.relay.0", directory)]
MORE_REPLACED_FILES = [("lock.supervisor", directory), ("hosts", fifo)]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("name", "damage"), [*REPLACED_FILES, *MORE_REPLACED_FILES] if LONG else REPLACED_FILES)
def test_down_removes_a_cluster_and_its_processes_when_files_were_replaced(
    name: str, damage: Callable[[Path], None]
) -> None:
    Cluster.star(2).up(DAMAGED, keep=True)
    assert run_command("inject", "--name", DAMAGED, "n1", "--delay", "1ms").code == 0
    damage(file(name))
    assert run_command("status").is_clean_exit
    assert run_command("heal", "--name", DAMAGED).is_clean_exit
    assert run_command("down", "--name", DAMAGED).code == 0
    assert not Store().names()


@contextmanager
def unrelated_process() -> Iterator[tuple[subprocess.Popen[bytes], Identity]]:
    """Run a process that belongs to no cluster."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process, identity(process.pid)
        finally:
            process.kill()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("command", ["down", "heal", "gc", "up"])
def test_an_unrelated_process_in_a_forged_state_is_not_killed(command: str) -> None:
    Cluster.star(2).up(DAMAGED, keep=True)
    assert run_command("inject", "--name", DAMAGED, "all", "--delay", "1ms").code == 0
    with unrelated_process() as (process, unrelated):
        injection = Injection(7, "a load", down=(), programs=(unrelated,))
        forged = replace(state(), injected=(*state().injected, injection), issued=7)
        if command == "down":
            forged = replace(forged, holder=unrelated)
        if command == "gc":
            dead = replace(unrelated, start=1)
            forged = replace(forged, phase="removing", owner=dead, holder=unrelated)
        Store().write(forged)
        arguments = {"up": ("up", "star-2", "--replace"), "heal": ("heal",), "gc": ("gc",), "down": ("down",)}[command]
        result = run_command(*arguments, *(("--name", DAMAGED) if command != "gc" else ()))
        assert result.is_clean_exit, result
        assert process.poll() is None
        if command in ("heal", "up"):
            assert run_command("down", "--name", DAMAGED).code == 0
        assert process.poll() is None


@pytest.mark.usefixtures("machine")
def test_another_clusters_supervisor_in_a_forged_state_is_not_killed() -> None:
    for name in (DAMAGED, OTHER):
        Cluster.star(2).up(name, keep=True)
        assert run_command("inject", "--name", name, "all", "--delay", "1ms").code == 0
    supervisor = running_supervisor(Store().directory(OTHER))
    assert supervisor is not None
    Store().write(replace(state(), holder=supervisor))
    assert run_command("down", "--name", DAMAGED).code == 0
    assert supervisor.is_alive
    assert run_command("down").code == 0


@pytest.mark.timeout(7_200 if LONG else 120)
@pytest.mark.usefixtures("machine")
def test_no_command_ends_with_a_traceback_on_damaged_files() -> None:
    """Damage values, bytes and complete files of a cluster with a relay."""
    seeds = [Random().randrange(1 << 32) for _ in SEEDS] if LONG else SEEDS
    for seed in seeds:
        random = Random(seed)
        Cluster.star(2).up(DAMAGED, keep=True)
        assert run_command("inject", "--name", DAMAGED, "n1", "--delay", "1ms").code == 0
        names = [
            file_name
            for file_name in ("state.json", "relay.json", "events.jsonl", "report.0")
            if file(file_name).exists()
        ]
        name = random.choice(names)
        kind = file_damage.damage_file(file(name), random)
        for arguments in (
            ("status",),
            ("status", "--json"),
            ("events", "--name", DAMAGED),
            ("exec", "--name", DAMAGED, "n1", "true"),
            ("inject", "--name", DAMAGED, "n2", "--loss", "1%"),
            ("heal", "--name", DAMAGED),
            ("up", "star-2", "--name", DAMAGED),
            ("gc",),
        ):
            result = run_command(*arguments)
            assert result.is_clean_exit, (seed, name, kind, arguments, result)
        if DAMAGED in Store().names():
            result = run_command("down", "--name", DAMAGED)
            assert result.code == 0, (seed, name, kind, result)
