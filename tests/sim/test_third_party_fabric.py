"""A third-party fabric in the simulation: a registered token ring (`tests/packages`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.errors import DescriptionError, TestbedError, UnsupportedError
from testbed.packages import offered_protocols
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.kinds import registered

PACKAGES = Path(__file__).parents[1] / "packages"


@pytest.fixture(autouse=True)
def token_ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the package on the path."""
    monkeypatch.syspath_prepend(PACKAGES)
    yield
    registered.cache_clear()


def test_checks_fates_rules_and_captures_work_on_a_third_party_fabric(tmp_path: Path) -> None:
    cluster = Cluster.star(4, kind="ring", delay="5us", loss="1%")
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('[[fault]]\nkind = "impair"\non = "n1--s1"\nat = "1ms"\nrules = ["drop nth(3)"]\n')
    testbed.run(
        cluster, "random", mode="sim", settings={"messages": 60}, seed=3, output=tmp_path / "run", check=True,
        capture=True, scenario=scenario,
    )  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verdict"]["grade"] == "trusted"
    assert result["switches"] == [{"s1": {"nobody": 0}}]
    checks = json.loads((tmp_path / "run" / "checks.json").read_text())
    assert checks["checks"]
    assert not [violation for check in checks["checks"] for violation in check["violations"]]
    causes = [json.loads(line)["cause"] for line in (tmp_path / "run" / "fates.jsonl").read_text().splitlines()]
    assert causes.count("loss") > 10
    assert causes.count("rule") == 2, "the rule did not drop one frame in each direction"
    captured = (tmp_path / "run" / "capture.pcapng").read_bytes()
    assert captured.count(b"dropped") == len(causes)


def test_runs_on_the_ring_are_reproducible_and_differ_from_those_on_ethernet(tmp_path: Path) -> None:
    captures = []
    for kind in ("ring", "ring", "ethernet"):
        output = tmp_path / str(len(captures))
        testbed.run(
            Cluster.star(3, kind=kind),
            "random",
            mode="sim",
            settings={"messages": 10},
            seed=5,
            output=output,
            capture=True,
        )
        captures.append((output / "capture.pcapng").read_bytes())
    assert captures[0] == captures[1] != captures[2]


def test_descriptions_that_the_ring_cannot_implement_are_rejected() -> None:
    with pytest.raises(DescriptionError, match=r"jitter on a link of kind ring.*one rate and one order"):
        Cluster.star(2, kind="ring", delay="5us", jitter="1us")
    with pytest.raises(
        DescriptionError, match=r"'rings'.*expected ethernet, myrinet, atm or ring.*did you mean 'ring'"
    ):
        Cluster.star(2, kind="rings")
    pair = [Node(name="n1"), Node(name="n2")]
    with pytest.raises(
        DescriptionError, match=r"kind: found 'ring' between two nodes.*a switch of that kind between them"
    ):
        Cluster(name="pair", nodes=pair, links=[Link(ends=["n1", "n2"], kind="ring")])
    with pytest.raises(UnsupportedError, match=r"s1:1--s2:1: a ring has stations, and no cable to another ring"):
        testbed.run(
            Cluster(
                name="two",
                switches=[Switch(name=name, kind="ring") for name in ("s1", "s2")],
                nodes=Cluster.star(2).nodes,
                links=[Link(ends=ends) for ends in (("s1:1", "s2:1"), ("n1", "s1:2"), ("n2", "s2:2"))],
            ),
            "pingpong",
            mode="sim",
        )


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (
            "class FABRIC: kind = Kind('blank', 'a blank')",
            r"which has no method network: expected a testbed.fabric.interface.Fabric",
        ),
        ("class FABRIC: network = print", r"whose kind is None: expected a testbed\.spec\.kinds\.Kind of that name"),
    ],
)
def test_an_incomplete_fabric_is_reported_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, error: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    metadata = tmp_path / "blank_fabric-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[testbed.fabrics]\nblank = blank:FABRIC\n")
    (tmp_path / "blank.py").write_text(f"from testbed.spec.kinds import Kind\n\n\n{module}\n")
    monkeypatch.delitem(sys.modules, "blank", raising=False)
    with pytest.raises(TestbedError, match=rf"package blank-fabric registers blank:FABRIC as fabric 'blank', {error}"):
        Cluster.star(2, kind="blank")


def test_protocols_without_routes_list_the_ring_among_their_fabrics() -> None:
    fabrics_of = {protocol.name: protocol.fabrics for protocol in offered_protocols()}
    assert fabrics_of["am2"] == fabrics_of["emp"] == ("ethernet", "myrinet", "ring")
    assert fabrics_of["tcp"] == ("ethernet", "ring")
