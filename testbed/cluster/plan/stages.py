"""Stages of impaired links in a plan: their disciplines, and the short and the long path of their frames.

A running link is spliced and restored without losing a frame, and its two paths never carry a frame at the same time.
Before frames take the long path, everything on it is ready: patch and stage are up and can send, offloads are off,
disciplines are set, and the redirections are prepared. Then frames that leave the switch by the cable's end are redirected
to the patch, and those that come in there to the stage: each by one request, so that a frame takes one path or the other.
Restoring the short path is among the first operations of a plan, in the same order; then the switch forgets what it
learned at the patch, and the stage is drained. A change that replaces a discipline in use takes the short path first.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import Draft
from testbed.cluster.plan.kernel_operations import (
    AwaitCarrier,
    Drain,
    EndEgress,
    EndRedirect,
    ForgetPort,
    Part,
    PrepareEgress,
    PrepareRedirect,
    Redirect,
    RedirectEgress,
    RemoveLoss,
    RemoveQdisc,
    SetLoss,
)
from testbed.cluster.plan.switch_ports import SwitchPorts, patch_of
from testbed.cluster.plan.veth_wiring import Device, Stage
from testbed.kernel.rtnl_dump import Interface

if TYPE_CHECKING:
    from testbed.cluster.plan.disciplines import Discipline


class Stages:
    """The links of a plan that netem or tc carry, by the state of their stages.

    staged: the links that already take their long path as wanted and whose stages keep their disciplines. left: what
    redirects, or is prepared to, until all else is done. unhooked: of these the indexes whose hooks go.
    """

    def __init__(self, draft: Draft, ports: SwitchPorts, files: Mapping[str, str]) -> None:
        self._draft = draft
        self._ports = ports
        self._stages = draft.wiring.stages
        self._spliced_ports = {stage.port for stage in self._stages.values()}
        self.left: list[Interface] = []
        self.unhooked: set[int] = set()
        self._disciplines = self._wanted_disciplines(files)
        self._staged = self._already_staged()
        outs = draft.wire.staged
        self._redirected = {found.index: out for found in draft.kept.values() if (out := outs.get(found.index))}

    def redirecting(self) -> set[int]:
        """The indexes at which frames are to be redirected to a stage or from it."""
        return {self._draft.index(at) for stage in self._stages.values() for at, _ in stage.redirections}

    def patches_standing_by(self) -> set[Device]:
        """The patches of links that have yet to take the long path."""
        ports = [stage.port for name, stage in self._stages.items() if name not in self._staged]
        return {patch_of(port) for port in ports if port is not None}

    # Disciplines and classifiers

    def _wanted_disciplines(self, files: Mapping[str, str]) -> list[Discipline]:
        if not self._stages:
            return []
        from testbed.cluster.plan.disciplines import disciplines  # encoders, which an unimpaired cluster does not need

        draft = self._draft
        mtus = {device: cable.mtu for cable in draft.wiring.cables for device in (cable.near, cable.far)}
        return [
            desired
            for name, stage in self._stages.items()
            for desired in disciplines(
                name,
                draft.link_services[name],
                draft.existing.link_services.get(name),
                stage,
                draft.index,
                mtu=mtus[stage.a],
                seed=draft.wanted.seed,
                files=files,
            )
        ]

    def remove_disciplines(self) -> None:
        """Remove disciplines and classifiers of devices that stay, unless others replace them."""
        losing = {desired.index for desired in self._disciplines if isinstance(desired, SetLoss)}
        queueing = {desired.index for desired in self._disciplines if not isinstance(desired, SetLoss)}
        untouched = losing | self._draft.parted
        for device, found in self._draft.kept_in_wire().items():
            if found.index in self._draft.wire.qdiscs and found.index not in queueing:
                self._draft.operations.append(RemoveQdisc(device[1], found.index))
            if found.index in self._draft.wire.classifiers and found.index not in untouched:
                self._draft.operations.append(RemoveLoss(device[1], found.index))

    def set_disciplines(self) -> None:
        if not self._disciplines:
            return
        from testbed.cluster.plan.disciplines import in_force

        draft = self._draft
        for desired in self._disciplines:
            if not in_force(desired, draft.wire) or (isinstance(desired, SetLoss) and desired.index in draft.parted):
                draft.operations.append(desired)

    def _new_disciplines(self) -> set[int]:
        """The indexes at which a discipline is added, replaced or removed."""
        qdiscs = self._draft.wire.qdiscs
        desired_values = {desired.index: desired for desired in self._disciplines if not isinstance(desired, SetLoss)}
        new = qdiscs.keys() - desired_values.keys()
        if desired_values:
            from testbed.cluster.plan.disciplines import changes_in_place

            new |= {
                index for index, desired in desired_values.items() if not changes_in_place(desired, qdiscs.get(index))
            }
        return new

    # The short path, and the long one by a stage

    def _already_staged(self) -> set[str]:
        draft = self._draft
        kept = draft.kept_indexes()
        new = self._new_disciplines()
        found = set()
        for name, stage in self._stages.items():
            outs = {draft.index(at): draft.index(out) for at, out in stage.redirections}
            right = outs.keys() <= kept and all(draft.wire.staged.get(at) == out for at, out in outs.items())
            if right and self._is_patched(stage.port) and not new & outs.keys():
                found.add(name)
        return found

    def _is_patched(self, port: Device | None) -> bool:
        """Whether a cable's end at a switch is plugged in and its frames leave by its patch, which is plugged in, too."""
        if port is None:
            return True
        kept, patch = self._draft.kept, patch_of(port)
        plugged = all(
            device in kept and kept[device].master == self._draft.switch_index(device) for device in (port, patch)
        )
        return plugged and self._draft.wire.patched.get(kept[port].index) == kept[patch].index

    def open_short_paths(self) -> None:
        """Return frames to the short path of their links until they take the long path, if they are to."""
        draft = self._draft
        link_of = {
            end: name
            for name, devices in draft.wiring.of_link.items()
            for _, device in devices
            for end in namespace_names.stage(device)
        }
        opened = self._to_open(link_of.keys())
        # Frames that have left a switch by a patch still take the long path.
        patched = {namespace_names.patch(name)[1] for name in draft.wire.interfaces}
        for found in opened:
            if found.name not in patched:
                self._open_short_path(found)
        for end, name in sorted(link_of.items()):
            stage_end = draft.wire.interfaces.get(end)
            if stage_end is not None and stage_end.index in draft.wire.qdiscs and name not in self._staged:
                draft.operations.append(Drain(name, end, stage_end.index))
        redirecting = self.redirecting()
        for found in opened:
            if found.name in patched and (namespace_names.WIRE, found.name) in draft.kept:
                if found.index in redirecting:  # to what is gone
                    self._end_redirection(found)
                else:
                    self.left.append(found)

    def _to_open(self, stage_ends: Set[str]) -> list[Interface]:
        """The interfaces that send frames the long path and are not to, or not as they do."""
        draft = self._draft
        restore_namespace = {draft.index(at) for name in self._staged for at, _ in self._stages[name].redirections}
        exits = {  # what has entered a stage, or left the switch for it, goes through
            draft.index(at): draft.index(out)
            for stage in self._stages.values()
            for at, out in stage.redirections[: 2 if stage.port is None else 3]
            if out in draft.kept
        }
        going = {removal.device for removal in draft.late_removals} - stage_ends
        return [
            found
            for name, found in draft.wire.interfaces.items()
            if name in going or (namespace_names.WIRE, name) in draft.kept
            if found.index not in restore_namespace
            and (
                self._plugged_patch(found)
                or found.index in draft.wire.patched
                or draft.wire.staged.get(found.index) not in (None, exits.get(found.index))
            )
        ]

    def _open_short_path(self, found: Interface) -> None:
        """End the redirection of an interface's frames to a stage. A port's patch works on until no frames reach it."""
        draft = self._draft
        patch = self._plugged_patch(found)
        if found.index in draft.wire.patched:
            draft.operations.append(EndEgress(found.name, found.index, prepared=patch is not None))
        if patch is None:
            self._end_redirection(found)
            return
        self._ports.set((namespace_names.WIRE, patch.name), (False, False), patch.index)
        self._end_redirection(found, prepared=True)
        draft.operations.append(ForgetPort(patch.name, patch.index))
        if (namespace_names.WIRE, found.name) not in self._spliced_ports:
            self.left.append(found)

    def _plugged_patch(self, found: Interface) -> Interface | None:
        """The patch beside a port, if it is plugged in."""
        patch = self._draft.wire.interfaces.get(namespace_names.patch(found.name)[0])
        return patch if patch is not None and patch.master else None

    def _end_redirection(self, found: Interface, *, prepared: bool = False) -> None:
        if found.index in self._draft.wire.staged:
            self._draft.operations.append(EndRedirect(found.name, found.index, prepared))
        self._redirected.pop(found.index, None)

    def take_long_paths(self) -> None:
        """Let the frames of links that are not staged yet take the long path."""
        draft, ports = self._draft, self._ports
        stages = {name: stage for name, stage in self._stages.items() if name not in self._staged}
        for stage in stages.values():
            self._await_stage(stage)
        for stage in stages.values():
            for at, out in stage.redirections[:2]:
                self._redirect(at, out)
            if stage.port is not None:
                self._redirect(*stage.redirections[2])
                self._prepare(stage, stage.port)
        for switch in draft.bridges:
            ports.set_forwarding(switch)
        for stage in stages.values():
            if stage.port is None:
                for at, out in stage.redirections[2:]:
                    self._redirect(at, out)
                continue
            patch = patch_of(stage.port)
            draft.operations.append(
                RedirectEgress(stage.port[1], draft.index(stage.port), patch[1], draft.index(patch))
            )
            self._redirect(*stage.redirections[3], prepared=True)
            ports.set(patch, ports.settings_of_place(patch))

    def _prepare(self, stage: Stage, port: Device) -> None:
        """Prepare to redirect what comes in on a cable's end, and what leaves by it."""
        index, (_, entrance) = self._draft.index(port), stage.redirections[3]
        self._draft.operations.append(PrepareRedirect(port[1], index))
        self._draft.operations.append(PrepareEgress(port[1], index, patch_of(port)[1], entrance[1]))

    def _await_stage(self, stage: Stage) -> None:
        draft = self._draft
        patch = () if stage.port is None else namespace_names.patch(stage.port[1])
        for device in (stage.forward, stage.backward, *((namespace_names.WIRE, end) for end in patch)):
            if device not in draft.kept and device not in draft.down and device in draft.up:
                draft.operations.append(AwaitCarrier(device[1], draft.index(device)))

    def _redirect(self, at: Device, out: Device, *, prepared: bool = False) -> None:
        index, out_index = self._draft.index(at), self._draft.index(out)
        if self._redirected.get(index) != out_index:
            self._draft.operations.append(Redirect(at[1], index, out[1], out_index, prepared))

    def end_left(self) -> None:
        """End what was left redirecting, or prepared to, when the frames took the short path."""
        for found in self.left:
            if found.index in self.unhooked:
                self._draft.operations.append(Part(found.name, found.index))
                continue
            if self._plugged_patch(found):
                self._draft.operations.append(EndEgress(found.name, found.index))
            self._draft.operations.append(EndRedirect(found.name, found.index))
