"""Commands ``protocol new``, ``protocol list`` and ``protocol check``, for authors of protocols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import (
    echo,
    is_given,
    json_option,
    print_json,
    print_warnings,
    require_compatible,
    require_given,
    show_phase,
)

if TYPE_CHECKING:
    from testbed.controller.conformance.suite import Result

_FAILED = 10
_COLOURS = {"passed": "green", "failed": "red", "not applicable": "yellow"}


def _number(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Callback of --ethertype: parse a decimal or hexadecimal number (0x88B7). Raises click.BadParameter."""
    try:
        return None if value is None else int(value, 0)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a number such as 0x88B7") from error


@click.group("protocol", short_help="Write a protocol, list those installed, check one.")
def protocol_command() -> None:
    """Protocols of NICs: write a package for one of your own, list those installed, check one.

    \b
    testbed protocol new mine       write a package that runs
    testbed protocol list
    testbed protocol check mine     run the conformance suite
    """


@protocol_command.command("new")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Folder to create; default: ./NAME.")  # fmt: skip
@click.option("--ethertype", callback=_number, default=None, metavar="NUMBER",
              help="EtherType of its frames; default: one that no installed package uses.")  # fmt: skip
def new_command(name: str, folder: Path | None, ethertype: int | None) -> None:
    """Write the package of a new protocol: frames, codec, firmware, host library, MPI, a workload and tests.

    The written protocol works, and passes the conformance suite: change it step by step into your own.
    """
    from testbed.protocol_template import write_package

    target_folder = folder or Path(name)
    for path in write_package(name, target_folder, ethertype):
        echo(str(path))
    echo(
        f"\nrun 'pip install -e {target_folder}', or add {target_folder} to PYTHONPATH; then\n"
        f"  testbed run star-4 {name}-greeting --protocol {name} --mode sim\n"
        f"  testbed protocol check {name}"
    )


@protocol_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the protocols: package, EtherType, modes, NICs, profiles, and the settings of their firmware."""
    from testbed.cli.doctor import print_protocols, protocol_documents
    from testbed.packages import offered_protocols, problems

    if as_json:
        print_json("protocols", {"protocols": protocol_documents(), "problems": problems()})
        return
    print_protocols()
    echo("\nsettings of firmware (testbed run ... --firmware KEY=VALUE), profiles (--profile NAME):")
    for protocol in offered_protocols():
        settings = " ".join(f"{key}={value}" for key, value in protocol.settings.items())
        if settings or protocol.profiles:
            echo(f"{protocol.name}: {settings or 'no settings'}")
            echo(f"    profiles: {', '.join(protocol.profiles) or 'none'}")
    print_warnings(problems())


@protocol_command.command("check")
@click.argument("name")
@click.option("--only", "chosen", multiple=True, metavar="CHECK", help="A check by its name; repeatable. Default: all.")
@click.option("--depth", type=click.IntRange(1, 8), default=6, show_default=True, metavar="N",
              help="Number of first frames whose fates the check 'fates' tries.")  # fmt: skip
@click.option("--cases", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="Number of cases of the check 'swarm'.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First case of the check 'swarm'.")
@click.option("--case", default=None, metavar="CASE",
              help="With one --only: run only this case, which a failure has printed.")  # fmt: skip
@json_option
@click.pass_context
def check_command(
    ctx: click.Context,
    name: str,
    chosen: tuple[str, ...],
    depth: int,
    cases: int,
    seed: int,
    case: str | None,
    as_json: bool,
) -> None:
    """Check a protocol: messages, fates of frames, restarts, random faults, and parity with real frames.

    \b
    testbed protocol check mine
    testbed protocol check mine --only wildcards --only cancel
    testbed protocol check mine --only fates --case 1+1:pdthpp

    A check that does not apply prints the reason: parity and killed-host need namespaces, and killed-host a NIC that can be
    shared. Exit code 10: a check failed.
    """
    from testbed.controller.conformance.suite import CHECKS, Scope, State, check, find_check

    if case is not None and len(chosen) != 1:
        raise click.UsageError("--case needs exactly one check: --only CHECK")
    names = [find_check(chosen_name).name for chosen_name in chosen] or [check.name for check in CHECKS]
    for check_name, parameters in (("fates", ("depth",)), ("swarm", ("cases", "seed"))):
        options = [(f"--{parameter}", is_given(ctx, parameter)) for parameter in parameters]
        require_given(f"the check {check_name!r}: add --only {check_name}", check_name in names, *options)
        if case is not None:
            for option in options:
                require_compatible(("--case", True), option)
    results = []
    for check_name in names:
        show_phase(f"{check_name} ...")
        results.append(check(name, check_name, Scope(depth, cases, seed), case))
        show_phase()
        if not as_json:
            _show(results[-1])
    failed = [result for result in results if result.state is State.FAILED]
    if as_json:
        print_json(
            "protocol-check",
            {"protocol": name, "passed": not failed, "checks": [_document(result) for result in results]},
        )
    if failed:
        raise click.exceptions.Exit(_FAILED)


def _document(result: Result) -> Mapping[str, object]:
    return {
        "name": result.check.name,
        "demands": result.check.demands,
        "state": result.state.value,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
    }


def _show(result: Result) -> None:
    state = result.state.value
    echo(f"{click.style(state.ljust(14), fg=_COLOURS[state])}  {result.check.name.ljust(11)}  {result.check.demands}")
    for line in result.reason.splitlines():
        echo(f"{''.ljust(16)}{line}")
