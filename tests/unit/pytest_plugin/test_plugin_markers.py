"""Markers of a test: how they compose a description, and errors of invalid arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import Cluster
from testbed.errors import DescriptionError, NotFoundError
from testbed.pytest_plugin import requires_marker
from testbed.pytest_plugin.marker import MarkerArguments, MarkerError, read_markers, select_modes
from testbed.pytest_plugin.prompt import command_for
from testbed.pytest_plugin.under_test import Overlay, apply_overlays
from testbed.spec.elements import Impairments
from testbed.spec.resolver import resolve

cluster = pytest.mark.cluster


def read_arguments(*markers: pytest.MarkDecorator, base: Path = Path(), source: object = None) -> MarkerArguments:
    return read_markers([decorator.mark for decorator in markers], base, source)


def test_impairments_apply_to_all_links_and_links_override_them() -> None:
    arguments = read_arguments(
        cluster("star-4", loss="1%", delay="2ms", links={"n1": {"delay": "5ms", "direction": "out"}}, seed=9)
    )
    layout = resolve(arguments.description())
    assert layout.seed == 9
    first, *rest = layout.links
    assert (first.forward.delay, first.backward.delay) == (5_000_000, 2_000_000)
    for link in rest:
        assert (link.forward.delay, link.backward.delay) == (2_000_000, 2_000_000)
    assert {direction.loss for link in layout.links for direction in (link.forward, link.backward)} == {0.01}


def test_the_nearest_marker_with_a_cluster_is_the_base_of_nearer_ones() -> None:
    module_marker, class_marker = cluster("ring-4", loss="9%"), cluster("star-4", loss="1%", delay="1ms")
    arguments = read_arguments(cluster(loss="3%", links={"n1": {"rate": "1mbit"}}), class_marker, module_marker)
    assert arguments.source == "star-4"
    assert arguments.impairments == {"loss": "3%", "delay": "1ms"}
    assert arguments.links == {"n1": {"rate": "1mbit"}}


def test_a_parameter_overrides_the_marker() -> None:
    layout = resolve(read_arguments(cluster("star-4", loss="1%"), source="star-2").description())
    assert (layout.name, layout.links[0].forward.loss) == ("star-2", 0.01)


def test_a_description_made_in_python_is_not_changed() -> None:
    star = Cluster.star(3, delay="1ms")
    assert read_arguments(cluster(star)).description() == star
    assert read_arguments(cluster(star)).origin == ""


def test_a_file_is_found_in_the_tests_directory(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text('[[node]]\nname = "a"\n[[node]]\nname = "b"\n[[link]]\nends = ["a", "b"]\n')
    arguments = read_arguments(cluster("two.toml", loss="5%"), base=tmp_path)
    assert resolve(arguments.description()).links[0].backward.loss == 0.05
    assert arguments.origin == str(tmp_path / "two.toml")


@pytest.mark.parametrize(
    ("decorator", "error", "message"),
    [
        (cluster(), MarkerError, "names no cluster"),
        (cluster("star-4", "star-5"), MarkerError, "takes one cluster"),
        (cluster(4), MarkerError, "found 4, expected a topology's name"),
        (cluster("sta-4"), NotFoundError, "did you mean 'star-4'"),
        (cluster("star-4", los="1%"), MarkerError, "cluster\\(\\) has no argument 'los' — did you mean 'loss'"),
        (cluster("star-4", require="root"), MarkerError, "has no argument 'require' — did you mean 'requires'"),
        (cluster("star-4", links={"n1": {"los": "1%"}}), DescriptionError, "did you mean 'loss'"),
        (cluster("star-4", links="n1"), MarkerError, "links: found 'n1'"),
        (cluster("star-4", links={"n9": {"loss": "1%"}}), NotFoundError, "no link, node or switch 'n9'"),
        (cluster("star-4", jitter="1ms", rate="1mbit", rate_trace="x"), DescriptionError, "rate"),
        (cluster("star-4", requires=[3]), MarkerError, "requires"),
        (
            cluster("star-4", datapath="rely"),
            MarkerError,
            "datapath: found 'rely', expected auto, direct, netem, tc, relay",
        ),
    ],
)
def test_invalid_markers_are_errors_with_the_reason(
    decorator: pytest.MarkDecorator, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_arguments(decorator).description()


def test_a_test_runs_in_the_requested_modes_that_it_supports() -> None:
    anywhere, live = [cluster("star-4").mark], [cluster("star-4", mode="live").mark]
    assert select_modes(anywhere, "both") == (("sim", "live"), "")
    assert select_modes(anywhere, "sim") == (("sim",), "")
    assert select_modes(live, "both") == (("live",), "")
    assert select_modes(live, "sim") == (("live",), "the test needs mode live, and --testbed-mode is sim")
    with pytest.raises(MarkerError, match="expected 'sim', 'live' or 'both'"):
        select_modes([cluster(mode="real").mark], "sim")


def test_later_overlays_override_earlier_ones() -> None:
    star = Cluster.star(2, loss="1%", delay="1ms")
    overlays = [Overlay("all", Impairments(loss="5%", rate="1gbit")), Overlay("n1", Impairments(loss="9%"), "in")]
    first, second = resolve(apply_overlays(star, overlays)).links
    assert (first.forward.loss, first.backward.loss, second.forward.loss) == (0.05, 0.09, 0.05)
    assert {direction.delay for direction in (first.forward, first.backward, second.backward)} == {1_000_000}
    assert {direction.rate for direction in (first.forward, first.backward, second.backward)} == {1_000_000_000}


def test_an_unmet_requirement_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = {"sunshine": lambda: "it rains", "air": lambda: ""}
    monkeypatch.setattr(requires_marker, "REQUIREMENTS", conditions)
    assert requires_marker.unmet_requirement(MarkerArguments(requires=("air",))) == ""
    assert (
        requires_marker.unmet_requirement(MarkerArguments(requires=("air", "sunshine")))
        == "requires sunshine: it rains"
    )
    assert (
        requires_marker.unmet_requirement(MarkerArguments(programs=("sh", "no-such-program")))
        == "requires programs that are not installed: no-such-program"
    )
    with pytest.raises(MarkerError, match="unknown requirement 'sun'; use one of sunshine, air"):
        requires_marker.unmet_requirement(MarkerArguments(requires=("sun",)))


def test_a_line_of_the_prompt_becomes_shell_exec_or_another_command() -> None:
    nodes = ["n1", "n2"]
    assert command_for("c-1", nodes, ["n2"])[-4:] == ["shell", "--name", "c-1", "n2"]
    assert command_for("c-1", nodes, ["n1", "ip", "-br", "a"])[-8:] == [
        *("exec", "--name", "c-1", "n1"),
        *("--", "ip", "-br", "a"),
    ]
    assert command_for("c-1", nodes, ["inject", "n1", "--loss", "5%"])[-6:] == [
        *("inject", "--name", "c-1"),
        *("n1", "--loss", "5%"),
    ]
