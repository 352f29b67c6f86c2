"""Loss classifier: the loss program on the ingress hook of an interface, which loses frames without netem, and its counters.

`load` puts the program and its maps into the kernel, and `attach` encodes the request that attaches the program, atomically
replacing the previous one. Then the classifier can be closed: the filter refers to the program until `detach`, or until the
hook or the interface is removed. The filter's name is a digest of its losses (`name_of`), so that a dump of the hook shows
whether they are in force. Another process finds the counters by a dump of the filter, which has the program's id; the
program has the ids of its maps. Nothing is pinned to a file.

Every load restarts the numbers of frames from 1, as `fates.stage` does when the fates of an impairment change; do not reload
for other changes. Only the counters can be continued (argument `counters`).

Loading needs CAP_BPF and CAP_NET_ADMIN in the initial user namespace, so it fails in a rootless cluster.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from testbed.errors import KernelError, PermissionDeniedError, UnsupportedError
from testbed.fates import fate_hash
from testbed.fates.flows import Flow
from testbed.fates.header_fields import Field, Fields
from testbed.fates.headers import standard_fields
from testbed.kernel import bpf, syscalls, userns
from testbed.kernel.children import in_child
from testbed.kernel.flow_program import WORD, FlowKey, GuardedField
from testbed.kernel.loss_program import COUNTERS, Losses, loss_program
from testbed.kernel.netlink import (
    ETH_P_ALL,
    LOSS_PRIORITY,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    RTM_DELTFILTER,
    RTM_NEWTFILTER,
    TC_H_CLSACT_INGRESS,
    TC_MESSAGE,
    TCA_KIND,
    TCA_OPTIONS,
    Filter,
    RequestError,
    RouteSocket,
    attribute,
    filters,
    message,
    text,
)
from testbed.spec.layout import Impairment
from testbed.spec.losses import parse_pattern

MAX_FLOWS: Final = 16_384
"""Maximum number of flows of a direction that have entries. The table takes 256 KiB, and about 100 bytes per flow."""

MAX_RANGES: Final = 1_000
"""Maximum number of ranges of a loss pattern, each of which takes two or three instructions."""

MAX_KEY_FIELDS: Final = 16
"""Maximum number of fields of a protocol's flow key, since a flow's words are on the program's stack."""

_PREFIX: Final = "testbed-loss"
_PROGRAM: Final = "testbed_loss"
_VERSION: Final = 1
"""Version of the program; part of the classifier's name."""

_HANDLE: Final = 1
_FD, _NAME, _FLAGS, _ID = 6, 7, 8, 11  # TCA_BPF_*: the kernel's include/uapi/linux/pkt_cls.h
_DIRECT_ACTION: Final = 1
_U32: Final = struct.Struct("=I")
_KEY: Final = _U32.pack(0)  # of an array's only value

_STANDARD_FIELDS: Final = standard_fields()


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a classifier. Frames, or bytes without the frame check sequence.

    offered, offered_bytes: all frames. loss, gemodel, loss_pattern: lost frames by cause, as in `fates.fate_counters`.
    lost_bytes: of all lost frames. untold: frames of flows that did not fit into the table; they are lost with the
    configured probability, but their fates are not repeatable. unsteady: frames that passed because of contention for
    Gilbert-Elliott's state. merged: GSO frames of several segments, which share one fate; they come from a sender whose
    offloads are on.
    """

    offered: int = 0
    offered_bytes: int = 0
    loss: int = 0
    gemodel: int = 0
    loss_pattern: int = 0
    lost_bytes: int = 0
    untold: int = 0
    unsteady: int = 0
    merged: int = 0

    @property
    def lost(self) -> int:
        """Number of lost frames, for all causes."""
        return self.loss + self.gemodel + self.loss_pattern

    @property
    def is_exact(self) -> bool:
        """Whether every frame had the fate that the model gives it."""
        return not (self.untold or self.unsteady or self.merged)


@dataclass(frozen=True, slots=True)
class AttachedClassifier:
    """A classifier on a hook. name: see `name_of`. program: id of the program."""

    name: str
    program: int


@dataclass(slots=True)
class Classifier:
    """Open descriptors of a loss program in the kernel and its maps."""

    name: str
    program: bpf.LoadedProgram
    maps: dict[str, bpf.Map]

    def close(self) -> None:
        """Close the descriptors. The program stays in the kernel while a filter uses it."""
        self.program.close()
        for table in self.maps.values():
            table.close()

    def __enter__(self) -> Classifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def counters(self) -> Counters:
        return counters_in(self.maps["counters"])

    def flows(self) -> dict[Flow, int]:
        """Read the number of frames by flow; empty without independent loss."""
        table = self.maps.get("flows")
        return {} if table is None else {_flow(key): _number(value) for key, value in table.items()}

    def count(self, flow: Flow) -> int:
        """Read the number of frames of one flow; 0 without independent loss."""
        table = self.maps.get("flows")
        if table is None:
            return 0
        words = fate_hash.flow_words(*flow)
        entry = table.lookup(struct.pack(f"={len(words)}Q", *words).ljust(table.key_size, b"\0"))
        return 0 if entry is None else _number(entry)

    def state(self) -> int:
        """Read the direction's word of state, see `loss_program`; 0 without gemodel and loss_pattern."""
        table = self.maps.get("state")
        value = None if table is None else table.lookup(_KEY)
        return 0 if value is None else int.from_bytes(value, sys.byteorder)


def refusal(impairment: Impairment, fields: Fields = _STANDARD_FIELDS) -> str:
    """Return why no program can decide these losses exactly; empty if a program can.

    Only loss, gemodel and loss_pattern are considered: the classifier implements nothing else.
    """
    try:
        losses_of(0, impairment, fields)
    except UnsupportedError as error:
        return str(error)
    return ""


def losses_of(key: int, impairment: Impairment, fields: Fields = _STANDARD_FIELDS) -> Losses:
    """Convert an impairment's losses for the program.

    key: of the direction, see `fate_hash.direction_key`. fields: header fields, which define the flows. Raises
    UnsupportedError if the program cannot decide these losses.
    """
    ranges: list[tuple[int, int]] = []
    period = 0
    if impairment.loss_pattern:
        numbers, period = parse_pattern(impairment.loss_pattern)
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = ranges[-1][0], number
            else:
                ranges.append((number, number))
        if len(ranges) > MAX_RANGES:
            raise UnsupportedError(
                f"the loss pattern has {len(ranges):,} ranges, and the classifier takes at most {MAX_RANGES:,}"
            )
    return Losses(
        key=key,
        loss=fate_hash.threshold(impairment.loss),
        gemodel=tuple(fate_hash.threshold(share) for share in impairment.gemodel),
        ranges=tuple(ranges),
        period=period,
        # Only independent loss depends on the flow.
        flows=tuple(_flow_keys(fields)) if impairment.loss else (),
    )


def name_of(losses: Losses) -> str:
    """Return the filter's name: equal for classifiers with equal losses, otherwise different."""
    return f"{_PREFIX} {hashlib.blake2b(f'{_VERSION} {losses}'.encode(), digest_size=8).hexdigest()}"


def load(losses: Losses, counters: bpf.Map | None = None, flows: int = MAX_FLOWS) -> Classifier:
    """Put a program and its maps into the kernel.

    counters: map of the replaced classifier, whose counts continue. flows: capacity of the table of flows. Raises ValueError
    if nothing is lost, PermissionDeniedError, and KernelError with the kernel's reason.
    """
    if not (losses.loss or losses.gemodel or losses.ranges):
        raise ValueError("nothing is lost: no classifier is needed")
    maps: dict[str, bpf.Map] = {}
    try:
        size = len(COUNTERS) * WORD
        if counters is None or counters.value_size != size:  # no counters, or counters of another version
            maps["counters"] = bpf.make_map("array", "counters", 4, size, 1)
        else:
            maps["counters"] = bpf.Map(os.dup(counters.descriptor), "counters", 4, size, 1)
        if losses.gemodel or losses.ranges:
            maps["state"] = bpf.make_map("array", "state", 4, WORD, 1)
        if losses.loss:
            maps["flows"] = bpf.make_map("hash", "flows", losses.flow_words * WORD, 2 * WORD, flows)
        code = loss_program(losses).assemble({name: table.descriptor for name, table in maps.items()})
        return Classifier(name_of(losses), bpf.load_classifier(code, _PROGRAM), maps)
    except OSError as error:
        for table in maps.values():
            table.close()
        if error.errno == errno.EPERM:
            raise PermissionDeniedError(f"loss by BPF needs root: {error.strerror}") from error
        raise KernelError(f"the kernel refuses loss by BPF: {error.strerror or error}") from error


def attach(index: int, classifier: Classifier) -> bytes:
    """Encode the request that attaches a classifier to an interface with clsact, replacing its current one."""
    options = attribute(_FD, _U32.pack(classifier.program.descriptor))
    options += attribute(_NAME, classifier.name.encode() + b"\0")
    options += attribute(_FLAGS, _U32.pack(_DIRECT_ACTION))
    flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE
    return message(RTM_NEWTFILTER, flags, _filter(index) + attribute(TCA_OPTIONS, options))


def detach(index: int) -> bytes:
    """Encode the request that removes an interface's classifier. The kernel rejects it with ENOENT if there is none."""
    return message(RTM_DELTFILTER, NLM_F_REQUEST, _filter(index))


def find_attached(route: RouteSocket, index: int) -> AttachedClassifier | None:
    """Return the classifier on an interface's ingress hook, if any. route: a socket of the interface's namespace."""
    return attached_among(filters(route, index, TC_H_CLSACT_INGRESS))


def attached_among(hook_filters: Iterable[Filter]) -> AttachedClassifier | None:
    """Return the classifier among the filters of an ingress hook, if any."""
    for _, kind, options in hook_filters:
        if kind == "bpf" and _ID in options and _NAME in options and text(options[_NAME]).split(" ")[0] == _PREFIX:
            return AttachedClassifier(text(options[_NAME]), _U32.unpack(options[_ID])[0])
    return None


@contextmanager
def open_attached(route: RouteSocket, index: int) -> Iterator[Classifier | None]:
    """Open the classifier on an interface, which any process may have loaded; None if there is none. Needs root."""
    attached_classifier = find_attached(route, index)
    classifier = None
    if attached_classifier is not None:
        try:
            classifier = _open(attached_classifier)
        except FileNotFoundError:  # replaced or removed between two calls
            attached_classifier = find_attached(route, index)
            classifier = None if attached_classifier is None else _open(attached_classifier)
    try:
        yield classifier
    finally:
        if classifier is not None:
            classifier.close()


def _open(attached_classifier: AttachedClassifier) -> Classifier:
    program = bpf.program_by_id(attached_classifier.program)
    maps: dict[str, bpf.Map] = {}
    try:
        for number in program.maps:
            table = bpf.map_by_id(number)
            maps[table.name] = table
        return Classifier(attached_classifier.name, program, maps)
    except BaseException:
        program.close()
        for table in maps.values():
            table.close()
        raise


def read_counters(route: RouteSocket, index: int) -> Counters | None:
    """Read the counters of the classifier on an interface; None if there is none."""
    with open_attached(route, index) as classifier:
        return None if classifier is None else classifier.counters()


def open_counters(route: RouteSocket, index: int) -> bpf.Map | None:
    """Open the counters of the classifier on an interface, for repeated calls of `counters_in`; None if there is none. The
    caller closes them. Later classifiers of the interface continue them."""
    with open_attached(route, index) as classifier:
        if classifier is None:
            return None
        table = classifier.maps["counters"]
        return replace(table, descriptor=os.dup(table.descriptor))


def counters_in(table: bpf.Map) -> Counters:
    """Read the counters from a classifier's map."""
    value = table.lookup(_KEY)
    if value is None:
        raise AssertionError("an array has all its values")
    return Counters(*struct.unpack(f"={len(COUNTERS)}Q", value))


def probe() -> str:
    """Return why this user cannot use loss by BPF on this machine; empty if possible. Tried in a scratch namespace."""

    def probe_in_namespace() -> str:
        if not userns.is_root():
            userns.become_namespace_root()
        syscalls.unshare(syscalls.CLONE_NEWNET)
        route = RouteSocket()
        try:
            try_classifier(route, 1)
        except (OSError, PermissionDeniedError, KernelError) as error:
            return str(error)
        except RequestError as error:
            return f"the kernel refuses a BPF filter: {error.refusals[0].reason}"
        return ""

    try:
        return in_child(probe_in_namespace)
    except (OSError, PermissionDeniedError, KernelError) as error:
        return str(error)


def try_classifier(route: RouteSocket, index: int) -> None:
    """Attach a classifier with every kind of loss to an interface of a scratch namespace, read its counters, and remove it.

    Raises KernelError, PermissionDeniedError, RequestError or OSError if the kernel rejects it.
    """
    from testbed.kernel import netlink_messages

    losses = losses_of(0, Impairment(loss=0.5, gemodel=(0.5, 0.5, 1.0, 0.0), loss_pattern="1 every 2"))
    with load(losses) as classifier:
        route.execute([netlink_messages.add_clsact(index), attach(index, classifier)], "netlink: try a classifier")
    if read_counters(route, index) is None:
        raise KernelError("the kernel does not report the attached BPF filter")
    route.execute([netlink_messages.remove_clsact(index)], "netlink: remove the tried classifier")


def _flow_keys(fields: Fields) -> Iterator[FlowKey]:
    routed = fields.routed_ethertypes()
    for (ethertype, begins), names in sorted(fields.flow_fields().items()):
        if len(names) + bool(begins) > MAX_KEY_FIELDS:
            raise UnsupportedError(
                f"the flow key of EtherType 0x{ethertype:04x} has {len(names)} fields, and the classifier takes at most "
                f"{MAX_KEY_FIELDS}"
            )
        if len(begins) > WORD:
            raise UnsupportedError(
                f"the headers of EtherType 0x{ethertype:04x} are distinguished by more than {WORD} bytes"
            )
        if names or begins:
            guarded = tuple(_guarded(fields, fields[name], ethertype) for name in names)
            yield FlowKey(ethertype, guarded, begins, ethertype in routed)


def _guarded(fields: Fields, field: Field, ethertype: int) -> GuardedField:
    if field.header.layer != "network" or field.header.number != ethertype:
        raise UnsupportedError(f"the flow key's field {field.name} is in another header than its protocol's")
    if field.width > WORD:
        raise UnsupportedError(f"the flow key needs the field {field.name}, wider than {WORD} bytes")
    guards = tuple((_guarded(fields, fields[name], ethertype), value) for name, value in field.guard)
    return GuardedField(field, guards)


def _flow(key: bytes) -> Flow:
    destination, source, *words = struct.unpack(f"={len(key) // WORD}Q", key)
    return Flow(destination & 0xFFFF, destination >> 16, source >> 16, tuple(words[: source & 0xFFFF]))


def _number(entry: bytes) -> int:
    _, number = struct.unpack("=QQ", entry)
    return int(number)


def _filter(index: int) -> bytes:
    info = LOSS_PRIORITY << 16 | ETH_P_ALL
    return TC_MESSAGE.pack(0, index, _HANDLE, TC_H_CLSACT_INGRESS, info) + attribute(TCA_KIND, b"bpf\0")
