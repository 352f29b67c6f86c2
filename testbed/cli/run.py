"""``run`` and ``runs``: workloads and commands on all nodes, and what past runs have come to."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.options import json_option, print_json
from testbed.cli.progress import progress

if TYPE_CHECKING:
    from testbed.controller.commands import CommandsResult
    from testbed.controller.running import Codec, Mode, Nics, RunResult
    from testbed.controller.verdicts import Verdict

_PLACE = Path("results/runs")
_EXIT_CODES = {"degraded": 8, "invalid": 9, "failed": 10}
_SHOWN = 40  # lines of what a command has said


@click.command("run", short_help="Run a workload, or commands, on the nodes of a cluster.")
@click.argument("cluster", metavar="CLUSTER")
@click.argument("workload", metavar="[WORKLOAD]", required=False)
@click.option(
    "--protocol",
    default="emp",
    show_default=True,
    metavar="NAME",
    help="What the NICs speak; tcp and udp: the kernel's.",
)
@click.option(
    "--codec",
    type=click.Choice(["generated", "scapy"]),
    default="generated",
    help="Let Scapy make and read the frames.",
)
@click.option("--mode", type=click.Choice(["sim", "live", "dilated"]), default="live", show_default=True,
              help="On a virtual clock in one process; in namespaces; or there, slowed.")  # fmt: skip
@click.option("--dilate", type=click.IntRange(1), default=None, metavar="K",
              help="How many times slower than its model time passes in a dilated run; 200 if not said.")  # fmt: skip
@click.option("--nics", type=click.Choice(["inline", "shared"]), default="inline", show_default=True,
              help="Whether a NIC's firmware runs in its host's process or in one of its own.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--firmware", multiple=True, metavar="KEY=VALUE", help="A setting of the protocol's NICs.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="So many times, with seeds one apart.")
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Of fates and of the workload; the description's if not said."
)
@click.option("--on", "commands", multiple=True, type=(str, str), metavar="NODE COMMAND",
              help="A shell command on a node, or on all of @TAG, instead of a workload; again and again.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="The run's folder; by default a new one in results/runs.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, metavar="SECONDS",
              help="How long each repetition may take.")  # fmt: skip
@click.option("--patience", type=click.FloatRange(0, min_open=True), default=None, metavar="SECONDS",
              help="For how long nothing may get any further.")  # fmt: skip
@click.option("--scenario", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="What goes wrong beside it, and when: in model time where that is dilated.")  # fmt: skip
@click.option("--profile", default="ideal", metavar="NAME|FILE",
              help="What NICs and hosts cost in the simulation: of the protocol, or a file; ideal: nothing.")  # fmt: skip
@click.option("--history", is_flag=True, help="Write what each application sent, received and was told.")
@click.option("--check/--no-check", default=None,
              help="Look through the history: nothing lost, twice, changed; usual where that is the matter.")  # fmt: skip
@click.option("--capture", is_flag=True, help="Write every frame of a simulation, and a trace.")
@click.option(
    "--fates", is_flag=True, help="Let the relay carry what is impaired, so that no fate in namespaces is untold."
)
@json_option
@click.pass_context
def run_command(
    ctx: click.Context,
    cluster: str,
    workload: str | None,
    protocol: str,
    codec: Codec,
    mode: Mode,
    dilate: int | None,
    nics: Nics,
    settings: tuple[str, ...],
    firmware: tuple[str, ...],
    repeat: int,
    seed: int | None,
    commands: tuple[tuple[str, str], ...],
    output: Path | None,
    timeout: float,
    patience: float | None,
    scenario: Path | None,
    profile: str,
    history: bool,
    check: bool | None,
    capture: bool,
    fates: bool,
    as_json: bool,
) -> None:
    """Run a workload on all nodes of a cluster, or commands on some.

    \b
    testbed run star-4 pingpong
    testbed run star-4 random --mode sim --set messages=1000 --seed 7
    testbed run star-4 bandwidth --protocol tcp
    testbed run star-4 random --scenario storm.toml
    testbed run emp-2001 comb --mode sim --profile emp-2001
    testbed run emp-2001 pingpong --mode dilated --dilate 500 --profile emp-2001
    testbed run now-1998-pair am-logp --protocol am2 --mode sim --firmware reliable=no --firmware virtual=no
    testbed run star-4 ./my_workload.py:PingPong --set count=5
    testbed run star-2 ./my_mpi4py_script.py --set args='100 4096'
    testbed run star-4 --on n1 'iperf3 -s -1' --on n2 'iperf3 -c n1'

    A cluster that is up under that name is used and stays; another one is brought up for the run and taken down after it.
    'testbed runs --workloads' lists workloads and their settings. Exit code 8: the verdict is degraded, 9: invalid, 10: a
    promise was broken.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them costs as much as 20 nodes
    if bool(workload) == bool(commands):
        raise click.UsageError("say either a workload or commands (--on NODE COMMAND)")
    if commands and (mode == "dilated" or dilate is not None):
        raise click.UsageError("time cannot be dilated for commands: they take what this machine takes")
    if commands and profile != "ideal":
        raise click.UsageError("--profile goes with a workload: commands take what this machine takes")
    if commands and firmware:
        raise click.UsageError("--firmware goes with a workload: commands run over the kernel's own protocols")
    what = "commands" if commands else str(workload).rpartition(":")[2].rpartition("/")[2].removesuffix(".py")
    place = output or _new_place(Path(cluster).name.removesuffix(".toml"), what)
    checked = False
    with progress(place, mode) as follow, _told_where(place, made=output is None):
        if commands:
            from testbed.controller.commands import run_commands

            ended = run_commands(
                cluster, commands, mode=mode, seed=seed, output=place, timeout=timeout, scenario=scenario,
                follow=follow or (lambda _: None),
            )  # fmt: skip
            document, show, verdict = _commands_document(ended), partial(_print_commands, ended), ended.verdict
        else:
            from testbed.controller.running import run
            from testbed.workloads.settings import pairs

            gc.freeze()  # what is imported is not looked through again and again
            result = run(
                cluster, str(workload), protocol=protocol, codec=codec, mode=mode, settings=pairs(settings), seed=seed,
                repeat=repeat, output=place, timeout=timeout, patience=patience, history=history, check=check,
                capture=capture, fates=fates, scenario=scenario, profile=profile, nics=nics,
                firmware=pairs(firmware, "--firmware"), dilate=dilate, follow=follow,
            )  # fmt: skip
            document, show, verdict = _document(result), partial(_print_rows, result), result.verdict
            checked = result.checks is not None
    if as_json:
        print_json("run", document)
    else:
        show()
        _print_verdict(verdict)
        if checked:
            from testbed.cli.replay import tell_checks

            tell_checks(place)
        click.echo(f"results are in {_near(place)}")
    ctx.exit(_EXIT_CODES.get(verdict.grade.value, 0))


@click.command("runs", short_help="List runs, show one, list workloads and protocols.")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option("--workloads", is_flag=True, help="List the workloads with their settings, and the protocols.")
@json_option
def runs_command(folder: Path | None, workloads: bool, as_json: bool) -> None:
    """List the runs in results/runs or another directory; with a run's own folder, show what came of it."""
    if workloads:
        _list_workloads(as_json)
        return
    from testbed.observe.recorded import recorded, runs

    place = folder or _PLACE
    if (place / "run.json").exists():
        found, unreadable = [recorded(place)], list[str]()
    else:
        found, unreadable = runs(place)
    if as_json:
        shown = [
            {"folder": str(run.folder), "status": run.status, "asked": run.asked, "result": run.result} for run in found
        ]
        print_json("runs", {"runs": shown, "unreadable": unreadable})
        return
    if (place / "run.json").exists():
        from testbed.cli.tables import print_rows

        one = found[0]
        click.echo(f"{one.asked.get('command', '')}: {one.status} {one.result.get('error', '')}".rstrip())
        print_rows(list(one.rows()))
    elif found:
        from testbed.cli.tables import print_table

        print_table(
            ["folder", "cluster", "workload", "protocol", "mode", "seed", "status", "verdict"],
            [
                [
                    run.folder.name,
                    *(str(run.asked.get(key, "")) for key in ("cluster", "workload", "protocol", "mode", "seed")),
                    run.status,
                    str((run.result.get("verdict") or {}).get("grade", "")),
                ]
                for run in found
            ],
        )
    else:
        click.echo(f"there are no runs in {place}")
    for sentence in unreadable:
        click.echo(sentence, err=True)


def _list_workloads(as_json: bool) -> None:
    from dataclasses import MISSING

    from testbed.registry import PROTOCOLS, WORKLOADS, load, offered
    from testbed.workloads.settings import settings_of

    forms = {name: load(WORKLOADS, name) for name in offered(WORKLOADS)}
    told = {
        name: {
            "summary": (form.__doc__ or "").strip().partition("\n")[0],
            "settings": {one.name: None if one.default is MISSING else one.default for one in settings_of(form)},
        }
        for name, form in forms.items()
    }
    if as_json:
        print_json("workloads", {"workloads": told, "protocols": list(offered(PROTOCOLS))})
        return
    for name, one in told.items():
        click.echo(f"{name}: {one['summary']}")
        settings = one["settings"]
        assert isinstance(settings, dict)
        click.echo("    " + " ".join(f"{key}={_written(value)}" for key, value in settings.items()))
    click.echo(f"protocols: {', '.join(offered(PROTOCOLS))}")


def _written(value: object) -> str:
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)


def _new_place(cluster: str, what: str) -> Path:
    """A folder that was not there yet; it is made, since another run may begin in the same second."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{cluster}-{what}"
    count, place = 1, _PLACE / stem
    while True:
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            count += 1
            place = _PLACE / f"{stem}-{count}"
        except OSError:  # the run says so where it writes
            return place
        else:
            return place


@contextmanager
def _told_where(place: Path, *, made: bool) -> Iterator[None]:
    """What has been measured before something went wrong is not lost. made: the folder was made for it, and is removed if
    nothing has begun."""
    before = (place / "run.json").exists()
    try:
        yield
    except BaseException:
        if made:
            with suppress(OSError):  # there is something in it
                place.rmdir()
        if not before and (place / "run.json").exists():
            from testbed.cli.replay import tell_checks

            click.echo(f"what there was until then is in {place}", err=True)
            tell_checks(place)
        raise


def _print_commands(result: CommandsResult) -> None:
    for one in result.commands:
        click.echo(f"{one.node}: {one.text} ended with code {one.code}")
        lines = one.tail().splitlines()
        click.echo("".join(f"  {line}\n" for line in lines[-_SHOWN:]), nl=False)


def _print_rows(result: RunResult) -> None:
    if result.verdict.grade.value == "invalid":
        click.echo("the run is invalid, and no figure of it is shown")
        return
    from testbed.cli.tables import print_rows, print_table

    print_rows(list(result.rows))
    if not result.rows and result.folder is not None:  # a script prints what comes of it
        for node in result.results:
            for log in sorted(result.folder.glob(f"**/logs/{node}.log")):
                lines = log.read_text(errors="replace").splitlines()
                click.echo("".join(f"{node}: {line}\n" for line in lines[-_SHOWN:]), nl=False)
    if result.used:
        parts = list(dict.fromkeys(part for one in result.used.values() for part in one))
        print_table(
            ["busy", *parts],
            [
                [node, *(f"{one[part]['share']:.1%}" for part in parts)]
                for node, one in list(result.used.items())[:_SHOWN]
            ],
        )
    switches = {name: one for name, one in result.repetitions[-1].switches.items() if any(one.values())}
    if switches:
        causes = list(dict.fromkeys(cause for one in switches.values() for cause in one))
        print_table(
            ["switch", *(cause.replace("_", " ") for cause in causes)],
            [[name, *(f"{one.get(cause, 0):,}" for cause in causes)] for name, one in list(switches.items())[:_SHOWN]],
        )


def _print_verdict(verdict: Verdict) -> None:
    for finding in verdict.findings:
        if finding.grade.value in _EXIT_CODES:
            where = " ".join(part for part in (finding.link, finding.direction) if part)
            measured = "" if finding.measured is None else f" {finding.measured:.6g} {finding.unit}"
            reason = f" ({finding.reason})" if finding.reason else ""
            click.echo(f"  {finding.what}{' on ' + where if where else ''}:{measured}{reason}: {finding.grade.value}")
    for note in verdict.notes:
        click.echo(f"note: {note}")
    colours = {"trusted": "green", "degraded": "yellow", "invalid": "red", "failed": "red"}
    click.echo(f"verdict: {click.style(verdict.grade.value, fg=colours[verdict.grade.value])}")


def _near(folder: Path) -> str:
    whole = folder.absolute()
    return os.path.relpath(whole) if whole.is_relative_to(Path.cwd()) else str(whole)


def _common(result: CommandsResult | RunResult) -> dict[str, object]:
    from testbed.controller.recording import verdict_in_words

    return {"cluster": result.cluster, "folder": str(result.folder), "verdict": verdict_in_words(result.verdict)}


def _commands_document(result: CommandsResult) -> Mapping[str, object]:
    told = [{"node": one.node, "command": one.text, "code": one.code, "log": str(one.log)} for one in result.commands]
    return {**_common(result), "commands": told}


def _document(result: RunResult) -> Mapping[str, object]:
    return {
        **_common(result),
        "workload": result.workload,
        "settings": result.settings,
        "protocol": result.protocol,
        "mode": result.mode,
        "seed": result.seed,
        "seconds": result.seconds,
        "rows": result.rows,
        "results": [one.results for one in result.repetitions],
        "counted": [one.counted for one in result.repetitions],
        "used": [one.used for one in result.repetitions],
        "switches": [one.switches for one in result.repetitions],
    }
