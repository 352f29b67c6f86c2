"""Forms of commands, derived from their parameters, and the conversion of a filled form to the arguments of a command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import click

from testbed.cli import machine_fault_commands, machine_run_commands
from testbed.cli.capture_command import capture_command
from testbed.cli.fault_commands import heal_command, inject_command, link_command, load_command, partition_command
from testbed.cli.web.page_parts import JSON

COMMANDS: Final[Mapping[str, click.Command]] = {
    "inject": inject_command,
    "link": link_command,
    "heal": heal_command,
    "capture": capture_command,
    "partition": partition_command,
    "load": load_command,
}
"""Commands that the page offers for a cluster on this machine."""

MACHINE_COMMANDS: Final[Mapping[str, click.Command]] = {
    "inject": machine_fault_commands.inject_command,
    "link": machine_fault_commands.link_command,
    "heal": machine_fault_commands.heal_command,
    "capture": machine_run_commands.capture_command,
    "partition": machine_fault_commands.partition_command,
    "load": machine_fault_commands.load_command,
}
"""Commands that the page offers for a cluster on several machines."""

_INTERNAL: Final = ("name", "as_json", "file", "cluster")
"""Parameters that the page sets, or does not need."""

Value: TypeAlias = "str | bool | Sequence[str]"


class FormError(Exception):
    """A filled form has a command, parameter or value that the page does not offer."""


@dataclass(frozen=True, slots=True)
class OfferedCommands:
    """Commands that the page offers. file, cluster: machines file and name of a cluster on several machines; both are empty
    for a cluster on this machine."""

    file: str = ""
    cluster: str = ""

    @property
    def commands(self) -> Mapping[str, click.Command]:
        return MACHINE_COMMANDS if self.file else COMMANDS

    def forms(self) -> JSON:
        """Describe the forms of all commands, for the page. words: first words of the command line, as text."""
        return {
            name: {**form_of(command), "words": shlex.join(["testbed", *self._first_words(name)])}
            for name, command in self.commands.items()
        }

    def _first_words(self, name: str) -> list[str]:
        return ["machines", name, self.file, self.cluster] if self.file else [name]

    def arguments(self, name: str, local_cluster: str, values: Mapping[str, Value]) -> list[str]:
        """Return the arguments of `testbed` for a filled form. local_cluster: name of the displayed cluster, if that is on
        this machine; otherwise ignored. Raises FormError."""
        command = self.commands.get(name)
        if command is None:
            raise FormError(f"no command {name!r} is offered here")
        arguments = arguments_of(command, values)
        return [*self._first_words(name), *arguments] if self.file else [name, "--name", local_cluster, *arguments]


HERE: Final = OfferedCommands()
"""The commands for a cluster on this machine."""


def form_of(command: click.Command) -> dict[str, JSON]:
    """Describe a command's form: its help and its parameters."""
    return {
        "help": _first_paragraph(command),
        "parameters": [_field(parameter) for parameter in _visible_parameters(command)],
    }


def arguments_of(command: click.Command, values: Mapping[str, Value]) -> list[str]:
    """Return the command's options, then its operands after ``--``, so that the text of a field cannot be parsed as an
    option. Raises FormError."""
    fields = {str(parameter.name): parameter for parameter in _visible_parameters(command)}
    if unknown := sorted(values.keys() - fields.keys()):
        raise FormError(f"{command.name} has no parameter {unknown[0]!r}")
    options: list[str] = []
    operands: list[str] = []
    for name, parameter in fields.items():
        value = values.get(name, "")
        if not value:
            continue
        if not isinstance(parameter, click.Option):
            operands += _operands(parameter, value)
        elif parameter.is_flag:
            options.append(_long(parameter))
        elif isinstance(value, bool):
            raise FormError(f"{_long(parameter)} takes a value")
        else:
            texts = [value] if isinstance(value, str) else value
            options += [f"{_long(parameter)}={text}" for text in texts if text]
    return [*options, "--", *operands] if operands else options


def _operands(parameter: click.Parameter, value: Value) -> list[str]:
    if not isinstance(value, str):
        raise FormError(f"{parameter.name} takes text")
    if parameter.nargs == 1:
        return [value]
    try:
        return shlex.split(value)
    except ValueError as error:
        raise FormError(f"{value}: {error}") from error


def _visible_parameters(command: click.Command) -> Iterator[click.Parameter]:
    for parameter in command.params:
        is_hidden = isinstance(parameter, click.Option) and parameter.hidden
        if parameter.name not in _INTERNAL and not is_hidden:
            yield parameter


def _field(parameter: click.Parameter) -> dict[str, JSON]:
    """Describe a field. kind: text, number, choice, flag or lines (a repeatable text)."""
    option = parameter if isinstance(parameter, click.Option) else None
    choices = list(parameter.type.choices) if isinstance(parameter.type, click.Choice) else []
    is_integer = isinstance(parameter.type, click.types.IntParamType)
    kind = "choice" if choices else "number" if is_integer else "text"
    if option is not None and option.is_flag:
        kind = "flag"
    elif option is not None and option.multiple:
        kind = "lines"
    return {
        "name": parameter.name,
        "label": _long(option) if option is not None else str(parameter.name),
        "kind": kind,
        "operand": option is None,
        "required": parameter.required,
        "choices": choices,
        "placeholder": parameter.metavar or "",
        "help": (option.help or "") if option is not None else "",
    }


def _long(option: click.Option) -> str:
    return max(option.opts, key=len)


def _first_paragraph(command: click.Command) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())
