"""Command ``testbed``: its sub-commands, imported when called, and the exit codes of errors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any

import click

from testbed.cli.collector import PROCESS
from testbed.cli.consoles import echo
from testbed.errors import TestbedError, reason_of

# sub-command -> (module, summary in `testbed --help`). A module is imported only when its command is called.
_COMMANDS = {
    "up": ("lifecycle_commands", "Bring a cluster up, or apply the changes to its file."),
    "down": ("lifecycle_commands", "Take a cluster down."),
    "gc": ("lifecycle_commands", "Remove the remains of clusters whose owner has died."),
    "status": ("status_command", "Show nodes, links and counters of a cluster that is up."),
    "top": ("top", "Watch a cluster, in the terminal or a browser; inject faults."),
    "inject": ("fault_commands", "Impair links of a running cluster: delay, loss, rate, rules."),
    "link": ("fault_commands", "Unplug cables and plug them in again."),
    "partition": ("fault_commands", "Block all traffic between groups of nodes."),
    "load": ("fault_commands", "Cause CPU load and background traffic."),
    "heal": ("fault_commands", "Remove injected faults."),
    "run": ("run_command", "Run a workload, or commands, on the nodes of a cluster."),
    "scenario": ("scenario_commands", "Check a scenario of faults."),
    "runs": ("run_command", "List runs, show one, list workloads."),
    "protocol": ("protocol_commands", "Write a protocol, list those installed, check one."),
    "report": ("report_command", "Make one HTML file of runs: verdict, plots, tables."),
    "compare": ("compare", "Compare two runs: better, worse or equal."),
    "study": ("study_command", "Run a study: many runs over a space of parameters."),
    "reproduce": ("reproduce", "Run papers' measurements and compare the results with their values."),
    "replay": ("replay", "Run a failed run again with the same fates, in either mode."),
    "check-run": ("replay", "Repeat the checks of a run's history."),
    "check": ("check", "Measure links, and judge the result: trusted, degraded or invalid."),
    "capture": ("capture_command", "Capture frames of links, with their fates."),
    "decode": ("decode", "Print a capture, frame by frame or message by message."),
    "dissector": ("decode", "Write a dissector of the protocols for Wireshark."),
    "events": ("event_commands", "Show the events of a cluster or run."),
    "nics": ("lifecycle_commands", "Share the NICs of a cluster, for scripts that attach."),
    "exec": ("exec_commands", "Run a program in a node."),
    "ssh": ("exec_commands", "Start an sshd in every node; log in to one."),
    "shell": ("exec_commands", "Open a shell in a node."),
    "validate": ("describe", "Check a description, and report all errors at once."),
    "topologies": ("describe", "List the clusters that come with testbed."),
    "graph": ("describe", "Draw a cluster, for Graphviz or in the terminal."),
    "schema": ("describe", "Print the JSON Schema of descriptions and of outputs."),
    "machines": ("machine_group", "Spread a cluster over several machines, and use it there."),
    "doctor": ("doctor", "Probe this machine's features; say how to enable the missing ones."),
}

_STATUS_SYNONYMS = ("ls", "list", "ps", "inspect")
"""Commands of other tools that correspond to `status`."""

_EPILOG = """\b
Exit codes:
  0  success                       5  name in use, or another command is running
  1  another error                 6  not permitted on this machine
  2  bad arguments or description  7  a kernel operation failed; rolled back
  3  not supported here            8  check, run, study: degraded
  4  no such cluster, node, file   9  check, run, study: invalid
 10  run, replay, check-run, protocol check: a check failed;
     study: a point or a check failed; reproduce: a row or a shape is off
compare: 0 no regression, 1 a regression, 2 not comparable
130  interrupted; rolled back  128+N  ended by signal N; rolled back
exec and shell end with the program's own code, 126 or 127 if it cannot start."""


@contextmanager
def _broken_pipe_exits() -> Iterator[None]:
    """Context manager: exit with the code of a program that SIGPIPE ends if the reader of the output has ended, as in
    ``testbed status | head -1``."""
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        sys.exit(128 + signal.SIGPIPE)


def _discard_output() -> None:
    """Discard output that cannot be written: at its exit the interpreter would try again, and report the error."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
        os.dup2(null, stream.fileno())


class _Commands(click.Group):
    """Group of commands whose modules are imported on use."""

    # In these two methods a BrokenPipeError must not reach click, which would exit with 1.
    @_broken_pipe_exits()
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return super().make_context(info_name, args, parent, **extra)

    @_broken_pipe_exits()
    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"testbed.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], _COMMANDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if args[0] in _STATUS_SYNONYMS:
                hint = "; 'testbed status' shows the clusters that are up, 'testbed status NAME' one of them"
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if not requested or ctx.resilient_parsing:
        return
    from importlib import metadata

    from protocols.core.compiled_build import build

    echo(f"testbed, version {metadata.version('netns-testbed')}, {build()}")
    ctx.exit()


@click.group(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and build.",
)
def testbed() -> None:
    """Virtual clusters of network namespaces, for testing cluster communication.

    \b
    testbed up star-4            bring a cluster of four nodes up
    testbed exec n1 -- ping n2   run a program in one of them
    testbed down                 take it down
    """


def _stop(number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM or SIGHUP as on Ctrl-C: unfinished work is rolled back."""
    echo(f"testbed: ended by {signal.Signals(number).name}", err=True)
    raise SystemExit(128 + number)


@_broken_pipe_exits()
def main() -> None:
    """Run the command. A user's mistake causes a message and an exit code, no traceback."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup, an exec'ed program must not end with the terminal either.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        code = testbed.main(standalone_mode=False, obj=PROCESS)  # the code of click's Exit, else None
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        echo("testbed: interrupted", err=True)
        sys.exit(130)
    except TestbedError as error:
        echo(f"testbed: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        echo(
            f"testbed: {reason_of(error) if _has_working_directory() else 'the working directory was removed'}",
            err=True,
        )
        _discard_output()
        sys.exit(1)


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
