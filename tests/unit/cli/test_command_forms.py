"""Forms of commands in the web view: fields for the options of each command, and no others."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from testbed.cli.web.command_forms import (
    COMMANDS,
    HERE,
    MACHINE_COMMANDS,
    FormError,
    OfferedCommands,
    arguments_of,
    form_of,
)

ON_MACHINES = OfferedCommands("lab.toml", "star-4")
OFFERED = [*((HERE, name) for name in COMMANDS), *((ON_MACHINES, name) for name in MACHINE_COMMANDS)]


@click.command("shake")
@click.argument("target", metavar="LINK")
@click.argument("others", nargs=-1)
@click.option("-h", "--hard", metavar="SHARE", help="How hard.")
@click.option("--times", type=int)
@click.option("--way", type=click.Choice(["up", "down"]))
@click.option("--again", is_flag=True)
@click.option("--rule", "rules", multiple=True)
@click.option("--secret", hidden=True)
@click.option("--name")
@click.option("--json", "as_json", is_flag=True)
def shake(**parameters: Any) -> None:
    """Shake a link."""
    click.echo(repr(parameters))


def parse_arguments(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """Return the parameters that click parses from the arguments."""
    return command.make_context(command.name, list(arguments)).params


def test_a_form_has_a_field_for_each_option_that_the_command_declares() -> None:
    fields = {field["name"]: field for field in form_of(shake)["parameters"]}
    assert list(fields) == ["target", "others", "hard", "times", "way", "again", "rules"]
    assert [field["kind"] for field in fields.values()] == ["text", "text", "text", "number", "choice", "flag", "lines"]
    assert fields["hard"]["label"] == "--hard"
    assert (fields["hard"]["placeholder"], fields["hard"]["help"]) == ("SHARE", "How hard.")
    assert fields["way"]["choices"] == ["up", "down"]
    assert form_of(shake)["help"] == "Shake a link."


@pytest.mark.parametrize(("offer", "name"), OFFERED)
def test_a_form_has_all_options_except_the_name_of_the_cluster_and_json(offer: OfferedCommands, name: str) -> None:
    command = offer.commands[name]
    fields = {field["name"] for field in form_of(command)["parameters"]}
    assert fields == {parameter.name for parameter in command.params} - {"name", "as_json", "file", "cluster"}
    assert len(fields) >= 1


def test_a_filled_form_is_converted_to_command_line_arguments() -> None:
    values = {
        "target": "n1", "others": "a 'b c'", "hard": "5%", "times": "3", "way": "down", "again": True,
        "rules": ["drop udp", "", "delay 1ms tcp"],
    }  # fmt: skip
    parsed_values = parse_arguments(shake, arguments_of(shake, values))
    assert parsed_values == {
        "target": "n1", "others": ("a", "b c"), "hard": "5%", "times": 3, "way": "down", "again": True,
        "rules": ("drop udp", "delay 1ms tcp"), "secret": None, "name": None, "as_json": False,
    }  # fmt: skip


def test_empty_fields_are_omitted() -> None:
    assert arguments_of(shake, {"target": "", "hard": "", "again": False, "rules": []}) == []


@pytest.mark.parametrize("value", ["--again", "--name=other", "-h", "--", "--json"])
def test_a_value_that_looks_like_an_option_is_a_value(value: str) -> None:
    parsed_values = parse_arguments(shake, arguments_of(shake, {"target": value, "hard": value}))
    assert (parsed_values["target"], parsed_values["hard"]) == (value, value)
    assert parsed_values["name"] is None
    assert not parsed_values["again"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "other"}, "no parameter 'name'"),
        ({"as_json": True}, "no parameter 'as_json'"),
        ({"secret": "x"}, "no parameter 'secret'"),
        ({"no such": "x"}, "no parameter 'no such'"),
        ({"target": ["a", "b"]}, "takes text"),
        ({"hard": True}, "--hard takes a value"),
        ({"others": "'a"}, "No closing quotation"),
    ],
)
def test_unknown_options_of_a_form_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FormError, match=message):
        arguments_of(shake, values)


@pytest.mark.parametrize("name", ["down", "exec", "up", "shell", "", "--help"])
def test_commands_without_a_form_are_rejected(name: str) -> None:
    with pytest.raises(FormError, match="is offered here"):
        HERE.arguments(name, "star-4", {})
    with pytest.raises(FormError, match="is offered here"):
        ON_MACHINES.arguments(name, "star-4", {})


def test_a_command_applies_to_the_cluster_of_the_view() -> None:
    values = {"target": "n1", "loss": "5%", "rules": ["drop udp and nth(3)"]}
    form_arguments = ["--loss=5%", "--rule=drop udp and nth(3)", "--", "n1"]
    assert HERE.arguments("inject", "star-4", values) == ["inject", "--name", "star-4", *form_arguments]
    assert ON_MACHINES.arguments("inject", "star-4", values) == [
        "machines",
        "inject",
        "lab.toml",
        "star-4",
        *form_arguments,
    ]


def test_a_form_shows_the_begin_of_the_command_line() -> None:
    assert [offer.forms()["heal"]["words"] for offer in (HERE, ON_MACHINES)] == [  # type: ignore[index, call-overload]
        "testbed heal", "testbed machines heal lab.toml star-4",
    ]  # fmt: skip


@pytest.mark.parametrize("offer", [HERE, ON_MACHINES])
def test_the_commands_accept_the_arguments_of_their_forms(
    monkeypatch: pytest.MonkeyPatch, offer: OfferedCommands
) -> None:
    for name, values in {
        "inject": {"target": "n1", "delay": "1ms", "queue_frames": "3", "duration": "1s"},
        "link": {"target": "n1", "action": "flap", "duration": "1s"},
        "heal": {"numbers" if offer.file else "words": "1 2"},
        "capture": {"target": "n1", "path": "x.pcapng", "duration": "1s", **({} if offer.file else {"count": "3"})},
        "partition": {"groups": "n1,n2 / n3,n4"},
        "load": {"nodes": "n1 n2", "rate": "1mbit"},
    }.items():
        calls: list[dict[str, Any]] = []
        command = offer.commands[name]
        monkeypatch.setattr(command, "callback", lambda calls=calls, **parameters: calls.append(parameters))
        result = CliRunner().invoke(command, offer.arguments(name, "star-4", values)[2 if offer.file else 1 :])
        assert result.exit_code == 0, result.output
        assert calls[0]["cluster" if offer.file else "name"] == "star-4"
        for key, value in values.items():
            parsed_value = calls[0][key]
            assert (
                " ".join(map(str, parsed_value)) if isinstance(parsed_value, tuple) else str(parsed_value)
            ).endswith(value)
