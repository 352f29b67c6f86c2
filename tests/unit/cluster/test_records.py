"""Records of a cluster survive writing and reading: the mark of ownership and the state."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cluster.records.ownership import Mark
from testbed.cluster.records.state import State, default_root
from testbed.kernel.processes import Identity, identity
from testbed.spec.resolver import resolve
from tests.unit.spec.cluster_strategies import descriptions

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")
IDENTITIES = st.builds(
    Identity,
    boot=st.uuids().map(str),
    pid_namespace=st.integers(1, 2**32 - 1),
    pid=st.integers(1, 2**22),
    start=st.integers(0, 2**63),
)
MARKS = st.builds(Mark, cluster=NAMES, key=st.one_of(st.just(""), NAMES), lasting=st.booleans(), owner=IDENTITIES)
MAX_ALIAS_SIZE = 255  # IFALIASZ without the NUL


def test_the_state_root_is_in_the_runtime_directory_only_if_it_belongs_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.cluster.records.state.is_root", lambda: False)
    monkeypatch.chdir(tmp_path)
    fallback = Path(f"/tmp/netns-testbed-{os.getuid()}")
    for runtime, root in (
        (str(tmp_path), tmp_path / "netns-testbed"),
        ("", fallback),
        (str(tmp_path / "missing"), fallback),
        (".", fallback),  # the XDG specification ignores relative paths
    ):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert default_root() == root
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # as after `su`, which keeps the variable
    assert default_root() == fallback


@given(MARKS)
def test_a_mark_survives_writing_and_reading_and_fits_an_alias(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark
    assert len(str(mark).encode()) <= MAX_ALIAS_SIZE


@given(st.one_of(st.text(), st.text(string.printable).map(lambda text: f"netns-testbed 1 {text}")))
def test_a_foreign_alias_is_no_mark_and_no_error(alias: str) -> None:
    mark = Mark.parse(alias)
    assert mark is None or str(mark).split() == alias.split()


@pytest.mark.parametrize(
    "alias",
    [
        "",
        "netns-testbed 1",
        "netns-testbed 2 c n1 held b:1:2:3",
        "netns-testbed 1 c n1 held",
        "netns-testbed 1 c n1 held b:1:2",
        "netns-testbed 1 c n1 held b:1:x:3",
        "netns-testbed 1 c n1 held b:1:2:3 more",
    ],
)
def test_an_invalid_mark_is_not_parsed(alias: str) -> None:
    assert Mark.parse(alias) is None


@given(IDENTITIES)
def test_an_identity_survives_writing_and_reading(process: Identity) -> None:
    assert Identity.parse(str(process)) == process


def test_this_process_is_alive_and_one_with_another_start_is_not() -> None:
    own_identity = identity()
    assert own_identity.is_local
    assert own_identity.is_alive
    assert not Identity(
        own_identity.boot, own_identity.pid_namespace, own_identity.pid, own_identity.start + 1
    ).is_alive
    assert not Identity("another boot", own_identity.pid_namespace, own_identity.pid, own_identity.start).is_alive


@given(
    descriptions(),
    descriptions(),
    st.sampled_from(["building", "up", "changing", "removing"]),
    st.booleans(),
    IDENTITIES,
    st.one_of(st.none(), IDENTITIES),
)
def test_a_state_survives_writing_and_reading(
    current: object, before: object, phase: str, lasting: bool, owner: Identity, holder: Identity | None
) -> None:
    state = State(
        name="c",
        origin="/somewhere/ä.toml",
        phase=phase,  # type: ignore[arg-type]
        lasting=lasting,
        owner=owner,
        layout=resolve(current),  # type: ignore[arg-type]
        namespaces={"": "/run/netns/c", "n1": "/run/netns/c.n1"},
        inodes={"": 4026532000, "n1": 4026532001},
        created=1_700_000_000,
        holder=holder,
        previous=resolve(before) if phase == "changing" else None,  # type: ignore[arg-type]
    )
    assert State.from_json(state.to_json()) == state


def test_a_state_of_another_version_is_rejected() -> None:
    with pytest.raises(ValueError, match="format 99"):
        State.from_json(json.dumps({"format": 99}))


def test_a_process_that_had_ended_when_its_identity_was_read_is_not_alive() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    zombie = identity(child)
    assert not zombie.is_alive
    os.waitpid(child, 0)
    assert not zombie.is_alive
    assert not identity(child).is_alive
