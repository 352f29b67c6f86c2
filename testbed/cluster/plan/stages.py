"""Stages of kernel-impaired links in a plan: qdiscs, loss classifiers, and the short and the long path of frames.

`veth_wiring` defines spliced links and their *patches* and *stages*, which are additional veth pairs. On the *short path*
of a link, frames pass through neither, as if the link were not impaired. On the *long path*, they are redirected through
the stage, and at a switch also through the patch.

A running link is spliced and restored without losing a frame, and its two paths never carry a frame at the same time.
Before frames take the long path, everything on it is ready: patch and stage are up and can send, offloads are off,
qdiscs and classifiers are set, and the redirections are prepared. Then frames that leave the switch by the cable's end are
redirected to the patch, and frames that arrive on the cable's end are redirected to the stage. Each redirection is one
request, so that a frame takes one path or the other. Restoring the short path is among the first operations of a plan: the
redirections are ended in the same order, the addresses that the switch has learned at the patch are flushed, and the stage
is drained. A change that replaces a qdisc in use restores the short path first.
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
    FlushPort,
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
    """The stages of the links of a plan whose datapath is netem or tc.

    redirections_to_remove_last: interfaces whose redirections, in force or prepared, are removed after most other
    operations. clsact_to_remove: indexes of those among them whose clsact qdiscs are removed with the redirections.
    """

    def __init__(self, draft: Draft, ports: SwitchPorts, files: Mapping[str, str]) -> None:
        self._draft = draft
        self._ports = ports
        self._stages = draft.wiring.stages
        self._spliced_ports = {stage.port for stage in self._stages.values()}
        self.redirections_to_remove_last: list[Interface] = []
        self.clsact_to_remove: set[int] = set()
        self._qdiscs_and_classifiers = self._desired_qdiscs_and_classifiers(files)
        self._staged = self._already_staged()
        redirections = draft.wire.staged
        self._redirected = {
            interface.index: out for interface in draft.kept.values() if (out := redirections.get(interface.index))
        }

    def redirected_indexes(self) -> set[int]:
        """Return the indexes at which frames are to be redirected to a stage or from it."""
        return {self._draft.index(at) for stage in self._stages.values() for at, _ in stage.redirections}

    def unused_patches(self) -> set[Device]:
        """Return the plugged ends of patches of links whose frames do not take the long path yet."""
        ports = [stage.port for name, stage in self._stages.items() if name not in self._staged]
        return {patch_of(port) for port in ports if port is not None}

    # Qdiscs and classifiers

    def _desired_qdiscs_and_classifiers(self, files: Mapping[str, str]) -> list[Discipline]:
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
                seed=draft.desired.seed,
                files=files,
            )
        ]

    def remove_qdiscs_and_classifiers(self) -> None:
        """Remove qdiscs and classifiers of kept devices, unless new ones replace them."""
        with_classifier = {desired.index for desired in self._qdiscs_and_classifiers if isinstance(desired, SetLoss)}
        with_qdisc = {desired.index for desired in self._qdiscs_and_classifiers if not isinstance(desired, SetLoss)}
        untouched = with_classifier | self._draft.parted
        for device, interface in self._draft.kept_in_wire().items():
            if interface.index in self._draft.wire.qdiscs and interface.index not in with_qdisc:
                self._draft.operations.append(RemoveQdisc(device[1], interface.index))
            if interface.index in self._draft.wire.classifiers and interface.index not in untouched:
                self._draft.operations.append(RemoveLoss(device[1], interface.index))

    def set_qdiscs_and_classifiers(self) -> None:
        """Set the desired qdiscs and classifiers that are not in force."""
        if not self._qdiscs_and_classifiers:
            return
        from testbed.cluster.plan.disciplines import is_in_force

        draft = self._draft
        for desired in self._qdiscs_and_classifiers:
            if not is_in_force(desired, draft.wire) or (isinstance(desired, SetLoss) and desired.index in draft.parted):
                draft.operations.append(desired)

    def _replaced_qdiscs(self) -> set[int]:
        """Return the indexes at which a qdisc is added, replaced or removed."""
        qdiscs = self._draft.wire.qdiscs
        by_index = {
            desired.index: desired for desired in self._qdiscs_and_classifiers if not isinstance(desired, SetLoss)
        }
        replaced = qdiscs.keys() - by_index.keys()
        if by_index:
            from testbed.cluster.plan.disciplines import can_change_in_place

            replaced |= {
                index for index, desired in by_index.items() if not can_change_in_place(desired, qdiscs.get(index))
            }
        return replaced

    # The short path, and the long one by a stage

    def _already_staged(self) -> set[str]:
        """Return the links whose frames already take the long path, through qdiscs that are not replaced."""
        draft = self._draft
        kept = draft.kept_indexes()
        replaced = self._replaced_qdiscs()
        staged = set()
        for name, stage in self._stages.items():
            outs = {draft.index(at): draft.index(out) for at, out in stage.redirections}
            is_redirected = outs.keys() <= kept and all(draft.wire.staged.get(at) == out for at, out in outs.items())
            if is_redirected and self._is_patched(stage.port) and not replaced & outs.keys():
                staged.add(name)
        return staged

    def _is_patched(self, port: Device | None) -> bool:
        """Whether a cable's end at a switch and its patch are plugged in, and frames that leave by the end are redirected
        to the patch. port: the cable's end. True for None, a link between two nodes."""
        if port is None:
            return True
        kept, patch = self._draft.kept, patch_of(port)
        is_plugged = all(
            device in kept and kept[device].master == self._draft.switch_index(device) for device in (port, patch)
        )
        return is_plugged and self._draft.wire.patched.get(kept[port].index) == kept[patch].index

    def restore_short_paths(self) -> None:
        """Return frames to the short path of their links, except links whose long path stays in use unchanged."""
        draft = self._draft
        link_of = {
            end: name
            for name, devices in draft.wiring.link_devices.items()
            for _, device in devices
            for end in namespace_names.stage(device)
        }
        redirected = self._interfaces_to_restore(link_of.keys())
        # Frames that have left a switch by a patch still take the long path, so the free ends of patches come last.
        patched = {namespace_names.patch(name)[1] for name in draft.wire.interfaces}
        for interface in redirected:
            if interface.name not in patched:
                self._restore_short_path(interface)
        for end, name in sorted(link_of.items()):
            stage_end = draft.wire.interfaces.get(end)
            if stage_end is not None and stage_end.index in draft.wire.qdiscs and name not in self._staged:
                draft.operations.append(Drain(name, end, stage_end.index))
        redirected_indexes = self.redirected_indexes()
        for interface in redirected:
            if interface.name in patched and (namespace_names.WIRE, interface.name) in draft.kept:
                if interface.index in redirected_indexes:  # its present redirection is to a removed interface
                    self._end_redirection(interface)
                else:
                    self.redirections_to_remove_last.append(interface)

    def _interfaces_to_restore(self, stage_ends: Set[str]) -> list[Interface]:
        """Return the interfaces whose frames take a long path that ends or changes."""
        draft = self._draft
        unchanged = {draft.index(at) for name in self._staged for at, _ in self._stages[name].redirections}
        exits = {  # redirections out of a stage, and from a patch into it, stay: frames may still be on the long path
            draft.index(at): draft.index(out)
            for stage in self._stages.values()
            for at, out in stage.redirections[: 2 if stage.port is None else 3]
            if out in draft.kept
        }
        removed_late = {removal.device for removal in draft.late_removals} - stage_ends
        return [
            interface
            for name, interface in draft.wire.interfaces.items()
            if name in removed_late or (namespace_names.WIRE, name) in draft.kept
            if interface.index not in unchanged
            and (
                self._plugged_patch(interface)
                or interface.index in draft.wire.patched
                or draft.wire.staged.get(interface.index) not in (None, exits.get(interface.index))
            )
        ]

    def _restore_short_path(self, interface: Interface) -> None:
        """End the redirection of an interface's frames to a stage. The patch of a port stays plugged in until no frames
        reach it."""
        draft = self._draft
        patch = self._plugged_patch(interface)
        if interface.index in draft.wire.patched:
            draft.operations.append(EndEgress(interface.name, interface.index, prepared=patch is not None))
        if patch is None:
            self._end_redirection(interface)
            return
        self._ports.set_settings((namespace_names.WIRE, patch.name), (False, False), patch.index)
        self._end_redirection(interface, prepared=True)
        draft.operations.append(FlushPort(patch.name, patch.index))
        if (namespace_names.WIRE, interface.name) not in self._spliced_ports:
            self.redirections_to_remove_last.append(interface)

    def _plugged_patch(self, port: Interface) -> Interface | None:
        """Return the end of a port's patch beside the port, if it is plugged in."""
        patch = self._draft.wire.interfaces.get(namespace_names.patch(port.name)[0])
        return patch if patch is not None and patch.master else None

    def _end_redirection(self, interface: Interface, *, prepared: bool = False) -> None:
        if interface.index in self._draft.wire.staged:
            self._draft.operations.append(EndRedirect(interface.name, interface.index, prepared))
        self._redirected.pop(interface.index, None)

    def take_long_paths(self) -> None:
        """Redirect the frames of all stages' links to the long path, except those that take it already."""
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
            ports.set_settings(patch, ports.desired_settings(patch))

    def _prepare(self, stage: Stage, port: Device) -> None:
        """Prepare the redirections of frames that arrive on a cable's end at a switch, and of frames that leave by it."""
        index, (_, entrance) = self._draft.index(port), stage.redirections[3]
        self._draft.operations.append(PrepareRedirect(port[1], index))
        self._draft.operations.append(PrepareEgress(port[1], index, patch_of(port)[1], entrance[1]))

    def _await_stage(self, stage: Stage) -> None:
        """Wait until the new interfaces of a stage and its patch can send."""
        draft = self._draft
        patch = () if stage.port is None else namespace_names.patch(stage.port[1])
        for device in (stage.forward, stage.backward, *((namespace_names.WIRE, end) for end in patch)):
            if device not in draft.kept and device not in draft.down and device in draft.up:
                draft.operations.append(AwaitCarrier(device[1], draft.index(device)))

    def _redirect(self, at: Device, out: Device, *, prepared: bool = False) -> None:
        index, out_index = self._draft.index(at), self._draft.index(out)
        if self._redirected.get(index) != out_index:
            self._draft.operations.append(Redirect(at[1], index, out[1], out_index, prepared))

    def remove_last_redirections(self) -> None:
        """Remove the redirections of `redirections_to_remove_last`, except those that a new stage has replaced.

        A new stage replaces one if a port of a switch has become an end of a link between nodes.
        """
        redirected_indexes = self.redirected_indexes()
        for interface in self.redirections_to_remove_last:
            if interface.index in self.clsact_to_remove:
                self._draft.operations.append(Part(interface.name, interface.index))
                continue
            if self._plugged_patch(interface):
                self._draft.operations.append(EndEgress(interface.name, interface.index))
            if interface.index not in redirected_indexes:
                self._draft.operations.append(EndRedirect(interface.name, interface.index))
