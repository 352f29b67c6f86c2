"""Commands ``run`` and ``runs``: run workloads or commands on all nodes, and list past runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import click

from testbed.cli.collector import imports_frozen
from testbed.cli.consoles import echo, json_option, new_results_folder, print_json, require_compatible, to_seconds
from testbed.cli.progress_display import progress
from testbed.registry import DEFAULT_PROTOCOL

if TYPE_CHECKING:
    from testbed.controller.runs.command_runs import CommandsResult
    from testbed.controller.runs.run_options import Mode, PlainOptions
    from testbed.controller.runs.runner import RunResult
    from testbed.controller.verdict.verdicts import Verdict

RUNS = Path("results/runs")
_EXIT_CODES = {"degraded": 8, "invalid": 9, "failed": 10}
_MODES = ("sim", "live", "dilated")
_NODE = re.compile("[A-Za-z0-9_-]+")
_MAX_SHOWN = 40  # lines of a command's output


@dataclass(frozen=True, slots=True)
class _EndedRun:
    """A run that has ended. document: its JSON document. show: prints its results. is_checked: whether its history was
    checked."""

    document: Mapping[str, object]
    show: Callable[[], None]
    verdict: Verdict
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class _RequestedRun:
    """A run of a workload with the options of the command line."""

    cluster: str
    workload: str
    settings: tuple[str, ...]
    firmware: tuple[str, ...]
    options: PlainOptions

    def run(self, folder: Path, on_progress: Callable[[str], None] | None) -> RunResult:
        """Run the workload, with its results in a folder. on_progress: see `progress`."""
        from testbed.controller.runs.runner import run
        from testbed.workloads.workload_settings import split_settings

        with imports_frozen():
            return run(
                self.cluster, self.workload, settings=split_settings(self.settings),
                firmware=split_settings(self.firmware, "--firmware"), output=folder, on_progress=on_progress, **self.options,
            )  # fmt: skip

    def run_in_series(self, protocol: str, mode: Mode, folder: Path) -> RunResult:
        """Run the workload over a protocol in a mode, with its results in a folder."""
        options: PlainOptions = {**self.options, "protocol": protocol, "mode": mode}
        with progress(folder, mode) as on_progress:
            return replace(self, options=options).run(folder, on_progress)


def _split_names(value: str) -> list[str]:
    """Parse names separated by commas."""
    return list(dict.fromkeys(name.strip() for name in value.split(",")))


def _check_names(_ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Callback of --protocol and --mode: check that no name is empty, and that modes exist."""
    for name in _split_names(value):
        if not name:
            raise click.BadParameter(f"{value!r} has an empty name: give one name, or several separated by commas")
        if param.name == "mode" and name not in _MODES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(_MODES)}")
    return value


@click.command("run", short_help="Run a workload, or commands, on the nodes of a cluster.")
@click.argument("cluster", metavar="CLUSTER")
@click.argument("workload", metavar="[WORKLOAD]", required=False)
@click.option(
    "--protocol",
    default=DEFAULT_PROTOCOL,
    show_default=True,
    metavar="NAME[,NAME...]",
    callback=_check_names,
    help="Protocol of the NICs; tcp and udp are the kernel's. Several: one run for each.",
)
@click.option(
    "--codec",
    type=click.Choice(["generated", "scapy"]),
    default="generated",
    help="Whether generated code or Scapy builds and parses the frames.",
)
@click.option("--mode", default="live", show_default=True, metavar="MODE[,MODE...]", callback=_check_names,
              help="sim: on a virtual clock; live: in namespaces; dilated: in namespaces, slowed.")  # fmt: skip
@click.option("--dilate", type=click.IntRange(1), default=None, metavar="K",
              help="Factor by which model time is slowed in a dilated run; default: 200.")  # fmt: skip
@click.option("--nics", type=click.Choice(["inline", "shared"]), default="inline", show_default=True,
              help="Where the firmware runs: in its host's process, or in an agent process.")  # fmt: skip
@click.option("--queues", type=click.IntRange(1, 64), default=1, metavar="N",
              help="Receive queues of each NIC; in namespaces with --nics shared.  [default: 1]")  # fmt: skip
@click.option("--steering", default="", metavar="HASH",
              help="Distribution of frames to the queues: a hash of the protocol, or round-robin.")  # fmt: skip
@click.option("--bind/--no-bind", default=True, help="Give each queue, and its programs, a processor.  [default: bind]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--firmware", multiple=True, metavar="KEY=VALUE", help="A setting of the protocol's NICs.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="Repetitions, each with the next seed.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=None,
    help="Seed of fates and of the workload; default: the description's.",
)
@click.option("--on", "commands", multiple=True, type=(str, str), metavar="NODE COMMAND",
              help="A shell command on a node, or on all of @TAG, instead of a workload; repeatable.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="The run's folder; by default a new one in results/runs.")  # fmt: skip
@click.option("--timeout", callback=to_seconds, default="60", show_default=True, metavar="SECONDS",
              help="Time limit of each repetition.")  # fmt: skip
@click.option("--patience", callback=to_seconds, default=None, metavar="SECONDS",
              help="End the run after this time without any progress.")  # fmt: skip
@click.option("--scenario", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="A timeline of faults; in a dilated run its times are model time.")  # fmt: skip
@click.option(
    "--profile",
    "named_profiles",
    multiple=True,
    metavar="[NODE=]NAME|FILE",
    help="Costs of the NICs and hosts, of all nodes or of one: a name or a file; ideal: no costs.",
)
@click.option("--ranks-per-node", type=click.IntRange(1), default=1, metavar="N",
              help="Ranks on each node whose description does not set them.")  # fmt: skip
@click.option("--history", is_flag=True, help="Record each program's sends, receives and completions.")
@click.option("--check/--no-check", default=None,
              help="Check the history for lost, duplicated or changed messages; default if useful.")  # fmt: skip
@click.option("--capture", is_flag=True, help="Write every frame of a simulation to a capture, and a trace.")
@click.option("--fates", is_flag=True, help="Let the relay forward all impaired links, so that it logs all fates.")
@json_option
@click.pass_context
def run_command(
    ctx: click.Context,
    cluster: str,
    workload: str | None,
    settings: tuple[str, ...],
    firmware: tuple[str, ...],
    commands: tuple[tuple[str, str], ...],
    output: Path | None,
    as_json: bool,
    named_profiles: tuple[str, ...],
    **options: Unpack[PlainOptions],
) -> None:
    """Run a workload on all nodes of a cluster, or commands on some.

    \b
    testbed run star-4 pingpong
    testbed run star-4 random --mode sim --set messages=1000 --seed 7
    testbed run star-4 bandwidth --protocol tcp
    testbed run star-2 pingpong --protocol emp,via,tcp --mode sim,live
    testbed run star-4 random --scenario storm.toml
    testbed run emp-2001 comb --mode sim --profile emp-2001
    testbed run emp-2001 pingpong --set sizes=4 --set count=20 --mode dilated --dilate 500 --profile emp-2001
    testbed run star-4 random --mode sim --ranks-per-node 2 --profile emp-2001 --profile n2=emp-2002
    testbed run now-1998-pair am-logp --protocol am2 --mode sim --firmware reliable=no --firmware virtual=no
    testbed run star-4 ./my_workload.py:PingPong --set count=5
    testbed run star-2 ./my_mpi4py_script.py --set args='100 4096'
    testbed run star-4 --on n1 'iperf3 -s -1' --on n2 'iperf3 -c n1'

    CLUSTER: a running cluster, which stays up, or a description, which is brought up for the run and taken down afterwards.
    'testbed runs --workloads' lists workloads and their settings. Exit code 8: the verdict is degraded, 9: invalid, 10: a
    check failed.
    """
    if bool(workload) == bool(commands):
        raise click.UsageError("give either a workload or commands (--on NODE COMMAND)")
    if " " in (workload or "") and "/" not in str(workload):
        raise click.UsageError(
            f"{workload!r} is no workload; a command needs the node that runs it: --on NODE {workload!r}"
        )
    _read_profiles(named_profiles, options)
    protocols, modes = _split_names(options["protocol"]), cast("list[Mode]", _split_names(options["mode"]))
    is_series = len(protocols) * len(modes) > 1
    options["protocol"], options["mode"] = protocols[0], modes[0]
    if commands:
        if is_series:
            raise click.UsageError("several protocols or modes need a workload: commands run once")
        _check_options_of_commands(options, settings, firmware)
    purpose = "commands" if commands else str(workload).rpartition(":")[2].rpartition("/")[2].removesuffix(".py")
    results_folder = output or new_results_folder(RUNS, f"{Path(cluster).name.removesuffix('.toml')}-{purpose}")
    requested = _RequestedRun(cluster, str(workload), settings, firmware, options)
    if is_series:
        with report_failure(results_folder, is_new=output is None):
            code = _run_series(protocols, modes, results_folder, requested.run_in_series, as_json)
        ctx.exit(code)
    with (
        progress(results_folder, options["mode"]) as on_progress,
        report_failure(results_folder, is_new=output is None),
    ):
        ended = (
            _run_commands(cluster, commands, results_folder, on_progress, options)
            if commands
            else _ended_run(requested.run(results_folder, on_progress))
        )
    ctx.exit(_print_ended(ended, results_folder, as_json))


def print_result(result: RunResult, folder: Path, as_json: bool) -> int:
    """Print the result of a run of a workload; return the exit code."""
    return _print_ended(_ended_run(result), folder, as_json)


def _print_ended(ended: _EndedRun, results_folder: Path, as_json: bool) -> int:
    if as_json:
        print_json("run", ended.document)
    else:
        ended.show()
        _print_verdict(ended.verdict)
        if ended.is_checked:
            from testbed.cli.replay import print_checks

            print_checks(results_folder)
        echo(f"results are in {_shortest_path(results_folder)}")
    return _EXIT_CODES.get(ended.verdict.grade.value, 0)


def _read_profiles(profiles: tuple[str, ...], options: PlainOptions) -> None:
    """Parse the values of --profile, and add the default profile and the profiles of nodes to the options."""
    default, by_node = "ideal", {}
    for text in profiles:
        node, equals, name = text.partition("=")
        if equals and _NODE.fullmatch(node):
            by_node[node] = name
        else:
            default = text
    options["profile"], options["profiles"] = default, by_node


def _check_options_of_commands(options: PlainOptions, settings: tuple[str, ...], firmware: tuple[str, ...]) -> None:
    """Reject options that have no effect on commands. Raises click.UsageError."""
    if options["mode"] == "dilated" or options["dilate"] is not None:
        raise click.UsageError("time cannot be dilated for commands: they run at this machine's speed")
    if options["profile"] != "ideal" or options["profiles"]:
        raise click.UsageError("--profile needs a workload: commands run at this machine's speed")
    if options["queues"] != 1 or options["steering"]:
        raise click.UsageError("--queues and --steering need a workload: commands use the kernel's own protocols")
    if options["ranks_per_node"] != 1:
        raise click.UsageError("--ranks-per-node needs a workload: repeat --on for several commands on a node")
    if firmware:
        raise click.UsageError("--firmware needs a workload: commands use the kernel's own protocols")
    needs_workload = {
        "--set": settings,
        "--protocol": options["protocol"] != DEFAULT_PROTOCOL,
        "--codec": options["codec"] != "generated",
        "--nics": options["nics"] != "inline",
        "--repeat": options["repeat"] != 1,
        "--patience": options["patience"] is not None,
        "--history": options["history"],
        "--check": options["check"],
        "--no-check": options["check"] is False,
        "--no-bind": not options["bind"],
        "--capture": options["capture"],
        "--fates": options["fates"],
    }
    for option, is_given in needs_workload.items():
        if is_given:
            raise click.UsageError(f"{option} needs a workload: it has no effect on commands (--on NODE COMMAND)")


def _run_commands(
    cluster: str,
    commands: tuple[tuple[str, str], ...],
    folder: Path,
    on_progress: Callable[[str], None] | None,
    options: PlainOptions,
) -> _EndedRun:
    from testbed.controller.runs.command_runs import run_commands

    result = run_commands(
        cluster, commands, mode=options["mode"], seed=options["seed"], output=folder, timeout=options["timeout"],
        scenario=options["scenario"], on_progress=on_progress or (lambda _: None),
    )  # fmt: skip
    return _EndedRun(_commands_document(result), partial(_print_commands, result), result.verdict)


def _ended_run(result: RunResult) -> _EndedRun:
    return _EndedRun(_document(result), partial(_print_rows, result), result.verdict, result.checks is not None)


def _run_series(
    protocols: list[str],
    modes: list[Mode],
    results_folder: Path,
    run: Callable[[str, Mode, Path], RunResult],
    as_json: bool,
) -> int:
    """Run a workload for each protocol and mode; return the exit code."""
    from testbed.cli.run_series import exit_code, print_series, run_each, write_report
    from testbed.packages import protocol

    for name in protocols:
        protocol(name)  # raises for an unknown protocol before the first run
    members = run_each(protocols, modes, results_folder, run)
    report = write_report(members, results_folder)
    if as_json:
        runs = [
            {
                "protocol": member.protocol,
                "mode": member.mode,
                "verdict": member.verdict,
                "run": None if member.result is None else _document(member.result),
            }
            for member in members
        ]
        print_json("run-series", {"folder": str(results_folder), "report": str(report or ""), "runs": runs})
    else:
        print_series(members, report and Path(_shortest_path(report)), Path(_shortest_path(results_folder)))
    return exit_code(members, _EXIT_CODES)


@click.command("runs", short_help="List runs, show one, list workloads.")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option("--workloads", is_flag=True, help="List the workloads with their settings, and the protocols.")
@json_option
def runs_command(folder: Path | None, workloads: bool, as_json: bool) -> None:
    """List the runs in results/runs or another directory, including runs of a series. If FOLDER is that of a run, show its
    result."""
    require_compatible(("--workloads", workloads), ("a FOLDER", folder))
    if workloads:
        _list_workloads(as_json)
        return
    from testbed.observe.recorded import read_run, runs

    directory = folder or RUNS
    if (directory / "run.json").exists():
        run_list, unreadable = [read_run(directory)], list[str]()
    else:
        run_list, unreadable = runs(directory)
    if as_json:
        shown = [
            {"folder": str(run.folder), "status": run.status, "asked": run.parameters, "result": run.result}
            for run in run_list
        ]
        print_json("runs", {"runs": shown, "unreadable": unreadable})
        return
    if (directory / "run.json").exists():
        from testbed.cli.table_layout import print_rows

        run = run_list[0]
        echo(f"{run.parameters.get('command', '')}: {run.status} {run.result.get('error', '')}".rstrip())
        print_rows(list(run.rows()))
    elif run_list:
        from testbed.cli.table_layout import print_table

        print_table(
            ["folder", "cluster", "workload", "protocol", "mode", "seed", "status", "verdict"],
            [
                [
                    str(run.folder.relative_to(directory)),
                    *(str(run.parameters.get(key, "")) for key in ("cluster", "workload", "protocol", "mode", "seed")),
                    run.status,
                    str((run.result.get("verdict") or {}).get("grade", "")),
                ]
                for run in run_list
            ],
        )
    else:
        echo(f"there are no runs in {directory}")
    for sentence in unreadable:
        echo(sentence, err=True)


def _list_workloads(as_json: bool) -> None:
    from dataclasses import MISSING

    from testbed.registry import PROTOCOLS, WORKLOADS, load, offered
    from testbed.workloads.workload_settings import settings_of

    forms = {name: load(WORKLOADS, name) for name in offered(WORKLOADS)}
    summaries = {
        name: {
            "summary": " ".join((form.__doc__ or "").strip().partition("\n\n")[0].split()),
            "settings": {key.name: None if key.default is MISSING else key.default for key in settings_of(form)},
        }
        for name, form in forms.items()
    }
    if as_json:
        print_json("workloads", {"workloads": summaries, "protocols": list(offered(PROTOCOLS))})
        return
    for name, workload in summaries.items():
        echo(f"{name}: {workload['summary']}")
        settings = workload["settings"]
        assert isinstance(settings, dict)
        echo("    " + " ".join(f"{key}={_format_setting(value)}" for key, value in settings.items()))
    echo(f"protocols: {', '.join(offered(PROTOCOLS))}")


def _format_setting(value: object) -> str:
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


@contextmanager
def report_failure(folder: Path, *, is_new: bool) -> Iterator[None]:
    """Context manager: if a run fails after it has begun, print its folder and its checks. is_new: whether the folder was
    created for this run; it is removed if the run has not begun."""
    had_run = (folder / "run.json").exists()
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # not empty
                folder.rmdir()
        if not had_run and (folder / "run.json").exists():
            from testbed.cli.replay import print_checks

            echo(f"the results so far are in {folder}", err=True)
            print_checks(folder)
        raise


def _print_commands(result: CommandsResult) -> None:
    for command in result.commands:
        echo(f"{command.node}: {command.text} ended with code {command.code}")
        lines = command.tail().splitlines()
        echo("".join(f"  {line}\n" for line in lines[-_MAX_SHOWN:]), nl=False)


def _print_rows(result: RunResult) -> None:
    if result.verdict.grade.value == "invalid":
        echo("the run is invalid: its measurements are not shown")
        return
    from testbed.cli.table_layout import print_rows, print_table

    print_rows(list(result.rows))
    if not result.rows and result.folder is not None:  # a script prints its results
        for node in result.results:
            for log in sorted(result.folder.glob(f"**/logs/{node}.log")):
                lines = log.read_text(errors="replace").splitlines()
                echo("".join(f"{node}: {line}\n" for line in lines[-_MAX_SHOWN:]), nl=False)
    if result.usage:
        parts = list(dict.fromkeys(part for usage in result.usage.values() for part in usage))
        print_table(
            ["busy", *parts],
            [
                [node, *(f"{usage[part]['share']:.1%}" if part in usage else "" for part in parts)]
                for node, usage in list(result.usage.items())[:_MAX_SHOWN]
            ],
        )
    switches = {name: counts for name, counts in result.repetitions[-1].switches.items() if any(counts.values())}
    if switches:
        causes = list(dict.fromkeys(cause for counts in switches.values() for cause in counts))
        print_table(
            ["switch", *(cause.replace("_", " ") for cause in causes)],
            [
                [name, *(f"{counts.get(cause, 0):,}" for cause in causes)]
                for name, counts in list(switches.items())[:_MAX_SHOWN]
            ],
        )


def _print_verdict(verdict: Verdict) -> None:
    for finding in verdict.findings:
        if finding.grade.value in _EXIT_CODES:
            echo(f"  {finding}: {finding.grade.value}")
    for note in verdict.notes:
        echo(f"note: {note}")
    colours = {"trusted": "green", "degraded": "yellow", "invalid": "red", "failed": "red"}
    echo(f"verdict: {click.style(verdict.grade.value, fg=colours[verdict.grade.value])}")


def _shortest_path(folder: Path) -> str:
    """Return a path relative to the working directory if it is inside that, else unchanged."""
    try:
        directory = Path.cwd()
    except FileNotFoundError:  # the working directory has been removed
        return str(folder)
    return str(folder.relative_to(directory) if folder.is_relative_to(directory) else folder)


def _common_document(result: CommandsResult | RunResult) -> dict[str, object]:
    """Return the keys that runs of workloads and of commands share."""
    from testbed.controller.runs.run_recorder import verdict_to_json

    return {"cluster": result.cluster, "folder": str(result.folder), "verdict": verdict_to_json(result.verdict)}


def _commands_document(result: CommandsResult) -> Mapping[str, object]:
    commands = [
        {"node": command.node, "command": command.text, "code": command.code, "log": str(command.log)}
        for command in result.commands
    ]
    return {**_common_document(result), "commands": commands}


def _document(result: RunResult) -> Mapping[str, object]:
    return {
        **_common_document(result),
        "workload": result.workload,
        "settings": result.settings,
        "protocol": result.protocol,
        "mode": result.mode,
        "seed": result.seed,
        "seconds": result.seconds,
        "rows": result.rows,
        "results": [repetition.results for repetition in result.repetitions],
        "counted": [repetition.counters for repetition in result.repetitions],
        "used": [repetition.usage for repetition in result.repetitions],
        "switches": [repetition.switches for repetition in result.repetitions],
    }
