"""Diversions in a plan: the relay forwards the frames of links that stay plugged or joined (see `veth_wiring`).

The last operations of a plan divert the frames of running links: before them, `transitions` makes the relay listen at the
taps. Ending a diversion is among the first operations.
"""

from __future__ import annotations

from collections.abc import Set

from testbed.cluster.plan.draft import Draft
from testbed.cluster.plan.kernel_operations import AwaitCarrier, Divert, Undivert
from testbed.cluster.plan.veth_wiring import Detour
from testbed.kernel.diversion import Diversion


class Diversions:
    """Diversions of the links of a plan that the relay forwards."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._detours = draft.wiring.detours
        self._diverted = self._already_diverted()

    def diversions_of(self, detour: Detour) -> dict[int, Diversion]:
        """Return the diversions of a link, by the index of the interface at which frames are diverted."""
        near, far = self._draft.index(detour.near), self._draft.index(detour.far)
        ends = [self._draft.index(end) for end in detour.ends]
        if len(ends) == 1:
            return {ends[0]: Diversion(near, near), near: Diversion(ends[0])}
        return {ends[0]: Diversion(near), ends[1]: Diversion(far)}

    def _already_diverted(self) -> set[str]:
        kept, existing = self._draft.kept_indexes(), self._draft.wire.diversions
        diverted = set()
        for name, detour in self._detours.items():
            desired = self.diversions_of(detour)
            if desired.keys() <= kept and all(existing.get(at) == diversion for at, diversion in desired.items()):
                diverted.add(name)
        return diverted

    def indexes(self) -> set[int]:
        """Return the indexes at which frames are to be diverted."""
        return {at for detour in self._detours.values() for at in self.diversions_of(detour)}

    def running_links(self) -> set[str]:
        """Return the links whose ends exist already, so that they may carry frames."""
        return {name for name, detour in self._detours.items() if self._draft.kept.keys() >= {*detour.ends}}

    def end_unneeded(self) -> None:
        """End unneeded diversions, those at taps last: the relay still sends the frames that it holds there."""
        needed = {at for name in self._diverted for at in self.diversions_of(self._detours[name])}
        ended: list[Undivert] = [
            Undivert(device[1], interface.index, tap=device in self._draft.patched)
            for device, interface in self._draft.kept_in_wire().items()
            if interface.index in self._draft.wire.diversions and interface.index not in needed
        ]
        ended.sort(key=lambda operation: operation.tap)
        self._draft.operations += ended

    def await_carriers(self) -> None:
        """Wait until the taps of new diversions can send."""
        for name in sorted(self._detours.keys() - self._diverted):
            detour = self._detours[name]
            for device in (detour.near, detour.far):
                if device not in self._draft.down:
                    self._draft.operations.append(AwaitCarrier(device[1], self._draft.index(device)))

    def divert(self, links: Set[str]) -> None:
        """Divert the frames of these links, unless they are diverted already."""
        for name in sorted(links - self._diverted):
            detour = self._detours[name]
            near, far = self._draft.index(detour.near), self._draft.index(detour.far)
            if len(detour.ends) == 1:
                (port,) = detour.ends
                self._draft.operations.append(Divert(port[1], self._draft.index(port), near, far))
            else:
                for end, tap in zip(detour.ends, (near, far), strict=True):
                    self._draft.operations.append(Divert(end[1], self._draft.index(end), tap))
