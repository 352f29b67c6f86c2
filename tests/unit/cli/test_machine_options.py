"""Pins and exclusions of `testbed machines up`, on the command line."""

from __future__ import annotations

import click
import pytest

from testbed.cli.machine_commands import constraints_of
from testbed.errors import ConflictError, NotFoundError
from testbed.spec.machines import Machine
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

LAYOUT = resolve(Description.star(3))
MACHINES = (Machine(name="lab1"), Machine(name="lab2"))


def test_nodes_and_switches_are_pinned_and_excluded() -> None:
    constraints = constraints_of(LAYOUT, MACHINES, ["n1=lab1", "s1=lab2"], ["all=lab1", "n2=lab2"])
    assert constraints.pins == {"n1": "lab1", "s1": "lab2"}
    assert constraints.exclusions == {"n1": {"lab1"}, "n2": {"lab1", "lab2"}, "n3": {"lab1"}}


def test_invalid_pins_and_exclusions_are_rejected() -> None:
    with pytest.raises(NotFoundError, match="the file has no machine 'lab' — did you mean 'lab"):
        constraints_of(LAYOUT, MACHINES, ["n1=lab"], [])
    with pytest.raises(NotFoundError, match="has no node 'n9'"):
        constraints_of(LAYOUT, MACHINES, [], ["n9=lab1"])
    with pytest.raises(ConflictError, match="n1 is pinned to two machines: lab1 and lab2"):
        constraints_of(LAYOUT, MACHINES, ["n1=lab1", "n1=lab2"], [])
    for text in ("n1", "=lab1", ""):
        with pytest.raises(click.BadParameter, match="NODES=MACHINE"):
            constraints_of(LAYOUT, MACHINES, [text], [])
