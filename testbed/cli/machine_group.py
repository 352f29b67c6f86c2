"""Group ``machines``: commands for clusters spread over machines, imported when called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from testbed.machines.remote_workers import RemoteWorker

# sub-command -> its module
_MODULES: Final = {
    **dict.fromkeys(("check", "up", "down", "exec", "shell", "status", "gc"), "machine_commands"),
    **dict.fromkeys(("inject", "link", "partition", "load", "heal"), "machine_fault_commands"),
    **dict.fromkeys(("run", "capture", "top"), "machine_run_commands"),
}

file_argument = click.argument("file", type=click.Path(path_type=Path))


class _Machines(click.Group):
    """Group of commands whose modules are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _MODULES:
            return None
        command: click.Command = getattr(import_module(f"testbed.cli.{_MODULES[cmd_name]}"), f"{cmd_name}_command")
        return command


@click.group("machines", cls=_Machines, short_help="Spread a cluster over several machines.")
def machines_command() -> None:
    """Run one cluster on the machines listed in FILE, which are reached by ssh.

    On each machine its part is an ordinary cluster: 'testbed down' and 'testbed gc' work there, too. 'testbed schema
    machines' lists all keys of FILE.
    """


@contextmanager
def running_workers(file: Path) -> Iterator[Mapping[str, RemoteWorker]]:
    """Context manager for workers on all machines of a file, by machine."""
    from testbed.machines.remote_workers import workers
    from testbed.spec.machines import load

    with workers(load(file).machines) as running:
        yield running


@contextmanager
def reachable_workers(file: Path) -> Iterator[tuple[Mapping[str, RemoteWorker], dict[str, str]]]:
    """Context manager for the workers on the reachable machines, by machine, and the error messages of the unreachable
    machines, by machine."""
    from testbed.machines import remote_workers
    from testbed.spec.machines import load

    with remote_workers.reachable_workers(load(file).machines) as (running, unreachable):
        yield running, {machine: str(error) for machine, error in unreachable.items()}
