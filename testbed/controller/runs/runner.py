"""Run a workload on all nodes of a cluster, in the simulation or in namespaces, from its description to its results.

    import testbed

    result = testbed.run("star-4", "pingpong", mode="sim", settings={"count": 100})
    result.rows                # measurements: dicts, as in the folder's rows.jsonl
    result.results["n1"]       # return value of the program on n1 (of the last repetition)
    result.verdict.grade       # trusted, degraded, invalid or failed
    result.folder              # the run's folder (see `folders`); None unless output was given

    async def hello(comm, node, *, tag: int = 7):        # your own workload: see `testbed.workloads`
        if comm.rank == 0:
            await comm.send("hello", 1, tag=tag)
        elif comm.rank == 1:
            return await comm.recv(source=0, tag=tag)

    testbed.run(Cluster.star(2, loss="5%"), hello, protocol="emp", seed=3).results["n2"]

cluster: a description, the name of a shipped topology, a file, or a `RunningCluster`, which stays up. The name of a
running cluster selects that cluster. Any other cluster is brought up for the run under a name of its own and taken down
afterwards, however the run ends; the simulation brings nothing up.

Failures raise exceptions: ProgramError (a program's traceback, with its node's name), FirmwareError, NodeDiedError,
StuckError in namespaces or StalledError in the simulation (with what each program waits for), RunTimeoutError,
UnwritableError, and the errors of bringing up; InvalidRunError in their place if an outage of the testbed or of a machine
may be the reason. Before they are raised, everything is cleaned up, and the folder has the measured rows and a result.json
with the failure.

`scenario`, a `Scenario` or its file, injects faults while the programs run. Each fault is an event of the run; a fault
without effect is a note of the verdict. In dilated runs, the times of a scenario are model times. Other code that acts on
a run is given as `companions`: see `execution.Companion`.

With ``history=True``, each application's sends, receives and notifications are written: see `testbed.workloads.history`.
With ``check=True``, checkers examine the histories, however the run ends (see `testbed.controller.checkers.promises`).
Their report is in the folder and in ``result.checks``; a failed check sets the verdict's grade to "failed".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.core.profile import Profile
from protocols.core.protocol import Protocol
from testbed import packages
from testbed.cluster.records.ownership import temporary_directory
from testbed.controller.runs.changed_frames import errors_naming_changed_frames
from testbed.controller.runs.execution import Companion, Execution, Plan, ProgressCallback, check_layout
from testbed.controller.runs.folders import RepetitionFiles, RunFolder
from testbed.controller.runs.lost_messages import undelivered_messages, unreceived_messages
from testbed.controller.runs.profiles import described_profile, node_profiles, profile_of, profile_values
from testbed.controller.runs.queue_options import live_queues, with_queues
from testbed.controller.runs.run_options import DILATE, Codec, Mode, Nics, RunOptions, complete
from testbed.controller.runs.run_recorder import RunRecorder, record_run
from testbed.controller.runs.run_target import RunTarget, find_target
from testbed.controller.verdict.verdicts import Finding, Verdict, verdict_of
from testbed.errors import DescriptionError, Problem, UnsupportedError
from testbed.runtime.journal import read
from testbed.runtime.shared.workers import ReceiveQueues
from testbed.runtime.sockets.protocol import is_lossy
from testbed.spec.placement import ranks_of, with_ranks
from testbed.workloads.lookup import Chosen, Form, choose, lookup_text
from testbed.workloads.workload_settings import parse_settings

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.checkers.check_report import Report
    from testbed.controller.checkers.runs import RepetitionChecker
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.controller.scenarios.machine_reports import SpreadScenario
    from testbed.controller.scenarios.player import ScenarioPlayer
    from testbed.controller.verdict.outages import OutageJudge, ProcessOutages
    from testbed.spec.layout import Layout
    from testbed.spec.model import Description
    from testbed.spec.scenario import Scenario


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run. results: return values of the programs, by rank. counters: counters of their NICs' firmware. usage:
    use of the processors, buses and cores that have costs in the profile (see `Execution`). All three are of the last
    repetition; `repetitions` has all. verdict: on all repetitions together. seconds: duration of the run."""

    cluster: str
    workload: str
    protocol: str
    mode: Mode
    seed: int
    settings: Mapping[str, object]
    rows: Sequence[Mapping[str, Any]]
    repetitions: Sequence[Execution]
    verdict: Verdict
    folder: Path | None
    seconds: float

    @property
    def results(self) -> Mapping[str, Any]:
        return self.repetitions[-1].results

    @property
    def counters(self) -> Mapping[str, Mapping[str, int]]:
        return self.repetitions[-1].counters

    @property
    def usage(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        return self.repetitions[-1].usage

    @property
    def checks(self) -> Report | None:
        return self.repetitions[-1].checks


def run(
    cluster: str | Path | Description | Layout | RunningCluster | SpreadCluster,
    workload: Form,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run a workload on all nodes of a cluster. options: see `run_options.RunOptions`, which documents each."""
    given = complete(options)
    protocol, codec, mode, nics = given["protocol"], given["codec"], given["mode"], given["nics"]
    seed, repeat, timeout, patience = given["seed"], given["repeat"], given["timeout"], given["patience"]
    output, history, firmware, on_progress = given["output"], given["history"], given["firmware"], given["on_progress"]
    chosen = choose(workload, given["settings"])
    nic_protocol = configured(protocol_of(protocol, mode, codec), protocol, firmware, codec, nics)
    check = _resolve_check(given["check"], chosen, protocol, nic_protocol, history)
    shared = _are_shared(nics, mode, codec, protocol, nic_protocol)
    factor = _dilation_factor(mode, given["dilate"], nic_protocol)
    prices = _resolve_prices(given["profile"], mode, nic_protocol)
    queue_count, steering = given["queues"], given["steering"]
    queues = ReceiveQueues()
    if mode == "live":
        has_shared_nics = shared or given["ranks_per_node"] > 1
        queues = live_queues(queue_count, steering, given["bind"], nic_protocol, protocol, has_shared_nics)
    else:
        prices = with_queues(prices, queue_count, steering, nic_protocol, protocol)
    target = find_target(cluster, mode, seed if given["link_seed"] is None else given["link_seed"])
    if target.spread is not None:
        _refuse_on_machines(given, lookup_text(workload))
    profiles = node_profiles(target, given["profiles"], mode, nic_protocol, prices)
    if mode == "live":
        target = _with_cores(target, given["ranks_per_node"], nic_protocol)
    target = _place_ranks(target, given["ranks_per_node"], profiles, prices)
    _check_target(target, chosen, nic_protocol, mode, factor, has_settings=bool(firmware))
    ranks = ranks_of(target.layout)
    scenario = _load_scenario(given["scenario"], target, mode, nic_protocol, factor, chosen)
    first_seed = target.layout.seed if seed is None else seed
    request = {
        "kind": "workload", "cluster": target.name, "origin": target.origin, "workload": chosen.name,
        "form": lookup_text(workload), "settings": chosen.settings, "protocol": protocol, "codec": codec, "mode": mode,
        "seed": first_seed, "repeat": repeat, "timeout": timeout, "patience": patience,
        "scenario": scenario.name if scenario is not None else "", "profile": profile_values(prices), "dilate": factor,
        "nics": nics, "queues": queue_count, "steering": steering, "firmware": dict(firmware or {}),
        "profiles": {name: profile_values(profile) for name, profile in profiles.items()},
        "ranks": [{"rank": rank.number, "name": rank.name, "node": rank.node, "core": rank.core} for rank in ranks],
    }  # fmt: skip
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        directory = output or stack.enter_context(temporary_directory("run"))
        recorder = stack.enter_context(record_run(Path(directory), request, target))
        players = _build_players(scenario, timeout, recorder, factor, prices, target.spread is not None)
        companions = (*given["companions"], *(player for player in players if isinstance(player, Companion)))
        checker = _repetition_checker(check, chosen, recorder, target, patience, (*given["companions"], *players))
        plan = Plan(
            chosen, _with_announced_incarnations(nic_protocol, scenario, mode), first_seed, timeout, patience,
            history or checker is not None, given["capture"], companions, on_progress, prices, factor, profiles=profiles,
            shared=shared, queues=queues, ranks=ranks, request=request,
        )  # fmt: skip
        series = _Series(target, recorder, plan, repeat, players, checker)
        with target.ready(
            on_progress or _ignore, recorder, fates=given["fates"], log=output is not None, factor=max(factor, 1)
        ) as running:
            executions = series.execute(running)
        seconds = time.monotonic() - started
        verdict = series.finish(executions, seconds)
        rows = list(read(recorder.path / "rows.jsonl"))
    output_folder = Path(output).absolute() if output is not None else None
    return RunResult(
        target.name,
        chosen.name,
        protocol,
        mode,
        first_seed,
        chosen.settings,
        rows,
        executions,
        verdict,
        output_folder,
        seconds,
    )


@dataclass(frozen=True, slots=True)
class _Series:
    """The repetitions of a run. plan: plan of the first repetition. players: players of the scenario."""

    target: RunTarget
    recorder: RunRecorder
    plan: Plan
    repeat: int
    players: Sequence[ScenarioPlayer | SpreadScenario]
    checker: RepetitionChecker | None

    def execute(self, running: RunningCluster | None) -> list[Execution]:
        """Execute all repetitions. running: None in the simulation."""
        with contextlib.ExitStack() as preparations:
            for player in self.players:
                preparations.enter_context(player.prepared(running, self.repeat))
            outages = _process_outages(running, self.plan.dilate)
            return [self._execute_repetition(number, running, outages) for number in range(1, self.repeat + 1)]

    def _execute_repetition(
        self, number: int, running: RunningCluster | None, outages: OutageJudge | None
    ) -> Execution:
        on_progress, checker, recorder = self.plan.on_progress, self.checker, self.recorder
        if self.target.spread is not None:
            from testbed.controller.verdict.machine_outages import MachineOutages

            outages = MachineOutages()
        phase = f"{self.plan.chosen.name} on {self.target.name}"
        if self.repeat > 1:
            phase += f", {number} of {self.repeat}"
        if on_progress is not None:
            on_progress(phase)
            on_progress = partial(_report_step, on_progress, phase)
        plan = replace(self.plan, seed=self.plan.seed + number - 1, on_progress=on_progress)
        files = recorder.create_repetition(number, self.repeat)
        recorder.add_event("repetition begins", number=number, seed=plan.seed)
        findings = checker.findings if checker is not None else list[Finding]
        with outages.judge_errors(recorder, findings) if outages is not None else contextlib.nullcontext():
            with checker.check_repetition(files, outages) if checker is not None else contextlib.nullcontext():
                try:
                    for player in self.players:
                        player.seed = plan.seed
                    with errors_naming_changed_frames(files.folder, recorder.path):
                        execution = self._execute_in_mode(running, plan, files, outages)
                finally:
                    for player in self.players:
                        player.close()
            if execution.lost is not None:  # after the checks: all files have been written
                raise execution.lost
        recorder.add_event("repetition ends", number=number)
        return execution if checker is None else checker.add_to(execution)

    def _execute_in_mode(
        self, running: RunningCluster | None, plan: Plan, files: RepetitionFiles, outages: OutageJudge | None
    ) -> Execution:
        """Execute a repetition. Each mode is imported only when it is used."""
        if self.target.spread is not None:
            from testbed.controller.runs.spread_execution import execute
            from testbed.controller.scenarios.machine_reports import SpreadScenario
            from testbed.controller.verdict.machine_outages import MachineOutages

            assert isinstance(outages, MachineOutages)
            scenario = next((player for player in self.players if isinstance(player, SpreadScenario)), None)
            return execute(self.target.spread, plan, files, outages, self.recorder.add_events, scenario)
        if running is None:
            from testbed.controller.runs.simulated_execution import simulate

            layout = self.target.layout
            seeded_layout = replace(layout, seed=layout.seed + plan.seed - self.plan.seed)
            return simulate(seeded_layout, self.target.base, plan, files)
        from testbed.controller.runs.live_execution import run_live

        return run_live(running, plan, files)

    def finish(self, executions: Sequence[Execution], seconds: float) -> Verdict:
        """Write the result to the folder; return the verdict of all repetitions together."""
        findings = [finding for execution in executions for finding in execution.verdict.findings]
        warnings = [note for player in self.players for note in player.notes]
        warnings += [*undelivered_messages(self.recorder.path), *unreceived_messages(self.recorder.path)]
        notes = [note for execution in executions for note in execution.verdict.notes]
        notes = [note for note in notes if all(player.is_new_note(note) for player in self.players)]
        verdict = verdict_of(
            findings, dict.fromkeys([*warnings, *notes]), sum(execution.verdict.seconds for execution in executions)
        )
        self.recorder.record_success(
            seconds=seconds,
            verdict=verdict,
            results=[execution.results for execution in executions],
            counted=[execution.counters for execution in executions],
            used=[execution.usage for execution in executions],
            switches=[execution.switches for execution in executions],
            lateness=[
                {name: asdict(lateness) for name, lateness in execution.lateness.items()} for execution in executions
            ],
        )
        return verdict


def _refuse_on_machines(given: RunOptions, form: str) -> None:
    """Check that a run on several machines supports the options. Raises UnsupportedError."""
    unsupported: dict[str, bool] = {
        f"mode {given['mode']}": given["mode"] != "live",
        "companions": bool(given["companions"]),
        "the codec scapy": given["codec"] != "generated",
        "a log of fates": given["fates"],
        "a workload without a name or file": not form,
    }
    requested = [option for option, is_requested in unsupported.items() if is_requested]
    if requested:
        raise UnsupportedError(f"a run on several machines does not support {', '.join(requested)}")


def _ignore(_phase: str) -> None:
    pass


def _resolve_check(
    check: bool | None, chosen: Chosen, protocol: str, nic_protocol: Protocol, history: bool
) -> bool | None:
    """Return whether checkers examine the history; None: by default. Raises UnsupportedError for an unsupported combination
    of workload, protocol and check."""
    if chosen.native is not None:
        return _resolve_check_of_native(chosen, protocol, nic_protocol, history, check)
    if is_lossy(nic_protocol):
        _refuse_losses(chosen, protocol, check)
        return False
    return check


def _resolve_prices(profile: str | Path | Profile | Mapping[str, Any], mode: Mode, protocol: Protocol) -> Profile:
    """Return the profile of NICs and hosts. Raises UnsupportedError for a profile with costs in mode live."""
    prices = profile_of(profile, protocol)
    if mode == "live" and not prices.is_zero_cost:
        raise UnsupportedError(
            f"profile {prices.name!r} needs --mode sim or --mode dilated: in live, NICs and hosts have no modelled cost"
        )
    return prices


def _with_cores(target: RunTarget, per_node: int, protocol: Protocol) -> RunTarget:
    """Return the target of a live run, in which a node with several ranks has the cores of its described profile, if the
    description has no number of them."""
    nodes = [
        replace(node, cores=described_profile(target, node.name, node.profile, protocol).cores)
        if node.profile and not node.cores and (node.ranks or per_node > 1)
        else node
        for node in target.layout.nodes
    ]
    return replace(target, layout=replace(target.layout, nodes=tuple(nodes)))


def _place_ranks(target: RunTarget, per_node: int, profiles: Mapping[str, Profile], default: Profile) -> RunTarget:
    """Return the target with ranks placed on its nodes."""
    cores = {node.name: node.cores or profiles.get(node.name, default).cores for node in target.layout.nodes}
    for node in target.layout.nodes:
        if node.ranks and max(node.ranks) >= cores[node.name]:
            raise UnsupportedError(
                f"node {node.name} has a rank on core {max(node.ranks)}, but only cores 0 to {cores[node.name] - 1}"
            )
    return replace(target, layout=with_ranks(target.layout, per_node, cores))


def _check_target(
    target: RunTarget, chosen: Chosen, protocol: Protocol, mode: Mode, factor: int, *, has_settings: bool
) -> None:
    """Check, before anything starts, that the workload can run on the target. has_settings: whether the firmware has other
    settings than its defaults. Raises UnsupportedError."""
    layout = target.layout
    check_layout(layout, chosen, protocol)
    several = len(ranks_of(layout)) > len(layout.nodes)
    if mode == "live" and several and protocol.split_driver is None:
        raise UnsupportedError(
            "several ranks on a node share its NIC, which this protocol does not support: use one rank per node"
        )
    if mode == "live" and several and has_settings:
        raise UnsupportedError(
            "several ranks on a node share its NIC, whose firmware has fixed settings then: leave --firmware out, or use "
            "one rank per node"
        )
    if factor and target.running is not None:
        raise UnsupportedError(
            f"{target.name} is up already: a dilated run brings up a cluster of its own, with slowed links"
        )


def _repetition_checker(
    check: bool | None,
    chosen: Chosen,
    recorder: RunRecorder,
    target: RunTarget,
    patience: float | None,
    companions: Sequence[object],
) -> RepetitionChecker | None:
    """Return the checker of repetitions if checks are requested; by default, if the workload or a companion requires
    them."""
    if not check and (check is not None or not (chosen.checked or companions)):
        return None
    from testbed.controller.checkers.runs import RepetitionChecker

    return RepetitionChecker(recorder, [rank.name for rank in ranks_of(target.layout)], patience, companions)


def _resolve_check_of_native(
    chosen: Chosen, protocol: str, nic_protocol: Protocol, history: bool, check: bool | None
) -> bool | None:
    """Return whether checkers examine the history of a native workload; None: by default. Raises UnsupportedError for a
    protocol that the workload does not run on, or for a history if the host library does not report messages."""
    if chosen.protocol and chosen.protocol != protocol:
        raise UnsupportedError(
            f"workload {chosen.name} calls the host library of {chosen.protocol}: use --protocol {chosen.protocol}, not "
            f"{protocol}"
        )
    if nic_protocol.active_messages:
        return check
    if not chosen.protocol:
        raise UnsupportedError(
            f"workload {chosen.name} sends active messages, which {protocol} does not have: use --protocol with one of "
            f"{', '.join(packages.with_active_messages())}; a class for the host library of {protocol} sets "
            f"protocol = {protocol!r}"
        )
    if history or check:
        raise UnsupportedError(
            f"workload {chosen.name} has no history: the host library of {protocol} does not report its messages"
        )
    return False


def configured(
    protocol: Protocol, name: str, settings: Mapping[str, object] | None, codec: Codec, nics: Nics
) -> Protocol:
    """Return the protocol with the settings applied to its firmware. Raises UnsupportedError, and DescriptionError for
    invalid settings."""
    if not settings:
        return protocol
    if protocol.configurable is None or codec != "generated" or nics != "inline":
        reason = "no settings"
        if protocol.configurable is not None:
            reason = "fixed settings with --nics shared and --codec scapy"
        raise UnsupportedError(f"the firmware of {name} has {reason}: leave --firmware out")
    form, owner = protocol.configurable.form, f"the firmware of {name}"
    try:
        return replace(protocol, plug=protocol.configurable.plug(form(**parse_settings(form, settings, owner))))
    except ValueError as error:
        text = str(error)
        value, _, allowed = text.rpartition(": ")  # the form "VALUE: ALLOWED" of the errors of built-in protocols
        problem = Problem("", value, allowed) if value and allowed else Problem("", text, "")
        raise DescriptionError(f"the settings of {owner}", [problem]) from error


def _refuse_losses(chosen: Chosen, protocol: str, check: bool | None) -> None:
    """Check that a protocol that loses messages supports the workload and check. Raises UnsupportedError."""
    if not chosen.supports_loss:
        raise UnsupportedError(
            f"workload {chosen.name} needs every message, once and in order, which {protocol} does not guarantee: use tcp "
            f"or a protocol on NICs"
        )
    if check:
        raise UnsupportedError(f"{protocol} gives no guarantees that could be checked: leave --check out")


def _report_step(on_progress: ProgressCallback, phase: str, step: str) -> None:
    on_progress(f"{phase}, {step}")


def _load_scenario(
    given: Scenario | str | Path | None,
    target: RunTarget,
    mode: Mode,
    protocol: Protocol,
    factor: int,
    chosen: Chosen,
) -> Scenario | None:
    """Load a scenario, and check that it is feasible on the target."""
    if given is None:
        return None
    from testbed.controller.scenarios.feasibility import check, texts_of
    from testbed.controller.scenarios.player import scenario_of

    scenario = scenario_of(given)
    if target.spread is not None and (files := texts_of(scenario.faults)):
        raise UnsupportedError(
            f"{scenario.name}: a jitter or a rate in a file ({next(iter(files))}) does not reach other machines"
        )
    datapath = target.running.state.asked if target.running is not None else "auto"
    check(
        scenario,
        target.layout,
        mode,
        over_kernel=protocol.uses_kernel_sockets,
        datapath=datapath,
        factor=factor,
        no_restarts=chosen.name if chosen.supports_restarts is False else "",
    )
    return scenario


def _with_announced_incarnations(protocol: Protocol, scenario: Scenario | None, mode: Mode) -> Protocol:
    """Return the protocol with NICs that must announce their incarnations, if NICs restart in simulated or dilated time.

    In such a run, incarnations count from 1, which peers may assume without an announcement. In mode live, incarnations are
    times, and NICs always announce them.
    """
    if scenario is None or mode == "live":
        return protocol
    from testbed.controller.scenarios.feasibility import restarts_nics

    return (
        replace(protocol, plug=partial(_plug_in_next_incarnation, protocol.plug))
        if restarts_nics(scenario)
        else protocol
    )


def _plug_in_next_incarnation(plug: Plug, adapter: Adapter, nic: Nic) -> Agent:
    return plug(adapter.with_incarnation(adapter.incarnation + 1), nic)


def _dilation_factor(mode: Mode, dilate: int | None, protocol: Protocol) -> int:
    """Return the factor by which time is slowed; 0 unless the run is dilated."""
    if mode != "dilated":
        if dilate is not None:
            raise UnsupportedError(f"time in {mode} cannot be slowed: dilate needs mode dilated")
        return 0
    if protocol.uses_kernel_sockets:
        raise UnsupportedError("kernel protocols run in real time: use mode live")
    return DILATE if dilate is None else dilate


def _are_shared(nics: Nics, mode: Mode, codec: Codec, name: str, protocol: Protocol) -> bool:
    """Whether NICs are shared. Raises UnsupportedError if NICs cannot be shared."""
    if nics == "inline":
        return False
    if mode != "live":
        raise UnsupportedError(
            f"--nics shared needs --mode live, got {mode}: shared NICs run in namespaces, in real time"
        )
    if protocol.split_driver is None:
        raise UnsupportedError(f"NICs of protocol {name} cannot be shared: leave --nics out")
    if codec != "generated":
        raise UnsupportedError("--nics shared needs --codec generated: agents of shared NICs have no other codec")
    return True


def _build_players(
    scenario: Scenario | None, timeout: float, recorder: RunFolder, factor: int, prices: Profile, on_machines: bool
) -> tuple[ScenarioPlayer | SpreadScenario, ...]:
    """Return the player of a scenario, if there is one."""
    if scenario is None:
        return ()
    from testbed.controller.scenarios.player import Dilated, ScenarioPlayer

    recorder.write_scenario(scenario.to_toml())
    if on_machines:
        from testbed.controller.scenarios.machine_reports import SpreadScenario

        return (SpreadScenario(scenario, timeout, recorder.add_events),)
    dilated = Dilated(factor, not prices.is_zero_cost) if factor else None
    return (ScenarioPlayer(scenario, seconds=timeout, record_event=recorder.add_event, dilated=dilated),)


def protocol_of(name: str, mode: Mode, codec: Codec = "generated") -> Protocol:
    """Return a registered protocol. Raises the errors of `packages.protocol`, and UnsupportedError if it does not support
    the mode or codec."""
    protocol = packages.protocol(name)
    if mode == "sim" and protocol.uses_kernel_sockets:
        raise UnsupportedError(
            f"{name} is a kernel protocol, which needs --mode live: only protocols on NICs run in sim"
        )
    if codec == "scapy":
        if protocol.by_scapy is None:
            raise UnsupportedError(
                f"{name} cannot have its frames built by Scapy, since its Protocol has no by_scapy: leave --codec out"
            )
        return replace(protocol, plug=protocol.by_scapy())
    return protocol


def _process_outages(running: RunningCluster | None, factor: int) -> ProcessOutages | None:
    """Return the outages of the testbed's own processes from now on; None without a running cluster."""
    if running is None:
        return None
    from testbed.controller.verdict.outages import ProcessOutages

    return ProcessOutages(running.name, time.monotonic_ns(), dilated=bool(factor))
