"""Netlink requests of a plan's operations. `netlink_executor` sends each request in its operation's namespace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeAlias

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.kernel_operations import (
    AddAddress,
    AddForwarding,
    AddHook,
    AddRoute,
    Divert,
    EndEgress,
    EndRedirect,
    FlushLearned,
    FlushPort,
    Join,
    MakeCable,
    MakeSwitch,
    Operation,
    Part,
    PrepareEgress,
    PrepareRedirect,
    Redirect,
    RedirectEgress,
    RemoveAddress,
    RemoveDevice,
    RemoveForwarding,
    RemoveLoss,
    RemoveQdisc,
    RemoveRoute,
    SetDevice,
    SetDown,
    SetLoss,
    SetNetem,
    SetPort,
    SetShaper,
    SetUp,
    Undivert,
)
from testbed.kernel import diversion, netlink, netlink_messages
from testbed.kernel.namespaces import OpenNamespace

_DeviceChange: TypeAlias = MakeSwitch | MakeCable | RemoveDevice | SetDevice | SetUp | SetDown
_PortChange: TypeAlias = SetPort | AddForwarding | RemoveForwarding | FlushLearned | FlushPort
_RedirectionChange: TypeAlias = AddHook | Join | Part | PrepareRedirect | Redirect | EndRedirect
_EgressChange: TypeAlias = PrepareEgress | RedirectEgress | EndEgress
_DiversionChange: TypeAlias = Divert | Undivert
_DisciplineChange: TypeAlias = SetNetem | SetShaper | SetLoss | RemoveLoss | RemoveQdisc
_AddressingChange: TypeAlias = AddAddress | RemoveAddress | AddRoute | RemoveRoute

NamespaceOpener: TypeAlias = Callable[[str], OpenNamespace]
"""Function that opens the namespace of a key."""


def requests_of(operation: Operation, open_namespace: NamespaceOpener, resources: ExitStack) -> list[bytes]:
    """Encode the netlink requests of an operation. resources: receives objects that must stay open until the requests are
    sent."""
    match operation:
        case MakeSwitch() | MakeCable() | RemoveDevice() | SetDevice() | SetUp() | SetDown():
            return _device_requests(operation, open_namespace)
        case SetPort() | AddForwarding() | RemoveForwarding() | FlushLearned() | FlushPort():
            return [_port_request(operation)]
        case AddHook() | Join() | Part() | PrepareRedirect() | Redirect() | EndRedirect():
            return _redirection_requests(operation)
        case PrepareEgress() | RedirectEgress() | EndEgress():
            return _egress_requests(operation)
        case Divert() | Undivert():
            return _diversion_requests(operation)
        case SetNetem() | SetShaper() | SetLoss() | RemoveLoss() | RemoveQdisc():
            return _discipline_requests(operation, open_namespace, resources)
        case AddAddress() | RemoveAddress() | AddRoute() | RemoveRoute():
            return [_addressing_request(operation)]
        case _:
            raise AssertionError(f"no request for {operation!r}")


def _device_requests(operation: _DeviceChange, open_namespace: NamespaceOpener) -> list[bytes]:
    match operation:
        case MakeSwitch(_, device, index, mac):
            return [netlink_messages.make_bridge(device, index, mac)]
        case MakeCable():
            return _cable_requests(operation, open_namespace)
        case RemoveDevice(_, _, index):
            return [netlink_messages.remove_link(index)]
        case SetDevice():
            return [netlink_messages.set_link(operation.index, operation.mtu, operation.mac, operation.switch)]
        case SetUp(_, _, index):
            return [netlink_messages.set_up(index)]
        case SetDown(_, _, index):
            return [netlink_messages.set_down(index)]


def _cable_requests(operation: MakeCable, open_namespace: NamespaceOpener) -> list[bytes]:
    set_up_later = operation.up and bool(operation.hooks)
    make_veth = netlink_messages.make_veth(
        operation.device,
        operation.index,
        operation.mtu,
        open_namespace(operation.peer_key).descriptor,
        operation.peer_device,
        operation.peer_index,
        operation.mac or None,
        operation.peer_mac or None,
        operation.switch or None,
        int(operation.up and not set_up_later),
    )
    hooks = [netlink_messages.add_clsact(index) for index in operation.hooks]
    set_up = [netlink_messages.set_up(operation.index)] if set_up_later else []
    return [make_veth, *hooks, *set_up]


def _port_request(operation: _PortChange) -> bytes:
    match operation:
        case SetPort(_, index, learning, flooding):
            return netlink_messages.set_bridge_port(index, int(learning), int(flooding))
        case AddForwarding(_, _, index, mac):
            return netlink_messages.add_fdb_entry(index, mac)
        case RemoveForwarding(_, index, mac):
            return netlink_messages.remove_fdb_entry(index, mac)
        case FlushLearned(_, index):
            return netlink_messages.flush_fdb(index)
        case FlushPort(_, index):
            return netlink_messages.flush_port_fdb(index)


def _redirection_requests(operation: _RedirectionChange) -> list[bytes]:
    staging, prepared_handle = netlink.STAGE_PRIORITY, netlink_messages.PREPARED
    match operation:
        case AddHook(_, index):
            return [netlink_messages.add_clsact(index)]
        case Join(_, a, b):
            return [
                netlink_messages.add_clsact(a),
                netlink_messages.add_clsact(b),
                netlink_messages.redirect_ingress(a, b),
                netlink_messages.redirect_ingress(b, a),
            ]
        case Part(_, index):
            return [netlink_messages.remove_clsact(index)]
        case PrepareRedirect(_, index):
            return [netlink_messages.prepare_redirection(index, staging)]
        case Redirect(_, index, _, out, prepared):
            if prepared:
                return [netlink_messages.redirect_ingress(index, out, staging, prepared_handle)]
            return [netlink_messages.add_clsact(index), netlink_messages.redirect_ingress(index, out, staging)]
        case EndRedirect(_, index, prepared):
            return [netlink_messages.remove_redirection(index, staging, prepared_handle if prepared else 0)]


def _egress_requests(operation: _EgressChange) -> list[bytes]:
    match operation:
        case PrepareEgress(_, index, patch, stage):
            return [
                netlink_messages.remove_egress_filters(index, netlink.EXCEPTION_PRIORITY),  # of an earlier plan
                netlink_messages.discard_from(index, patch),
                netlink_messages.allow_from(index, stage),
            ]
        case RedirectEgress(_, index, _, patch_index):
            return [netlink_messages.redirect_egress(index, patch_index)]
        case EndEgress(_, index, prepared):
            end = [netlink_messages.remove_egress_filters(index)]
            return (
                end if prepared else [*end, netlink_messages.remove_egress_filters(index, netlink.EXCEPTION_PRIORITY)]
            )


def _diversion_requests(operation: _DiversionChange) -> list[bytes]:
    match operation:
        case Divert(_, index, tap, back):
            mark = index
            divert_incoming = diversion.divert(index, diversion.INGRESS, tap, mark)
            if not back:
                return [divert_incoming]
            return [
                netlink_messages.add_clsact(tap),
                diversion.put_back(tap, index, mark),
                divert_incoming,
                diversion.divert(index, diversion.EGRESS, tap, mark, as_outgoing=True),
            ]
        case Undivert(_, index, _):
            return [diversion.remove(index, diversion.EGRESS), diversion.remove(index, diversion.INGRESS)]


def _discipline_requests(
    operation: _DisciplineChange, open_namespace: NamespaceOpener, resources: ExitStack
) -> list[bytes]:
    from testbed.kernel import loss_classifier, netem, shapers  # encoders that an unimpaired cluster does not need

    match operation:
        case SetNetem():
            return [netem.request(operation.index, operation.options)]
        case SetShaper():
            return shapers.requests(operation.index, operation.options, operation.before)
        case SetLoss():
            return [
                netlink_messages.add_clsact(operation.index),
                _classifier_request(operation, open_namespace, resources),
            ]
        case RemoveLoss(_, index):
            return [loss_classifier.detach(index)]
        case RemoveQdisc(_, index):
            return [netlink_messages.remove_qdisc(index)]


def _classifier_request(operation: SetLoss, open_namespace: NamespaceOpener, resources: ExitStack) -> bytes:
    """Encode the request that attaches a new classifier, which continues the counters of the replaced one."""
    from testbed.kernel import loss_classifier

    with loss_classifier.open_attached(open_namespace(namespace_names.WIRE).route, operation.index) as old:
        counters = old.maps["counters"] if old is not None else None
        new = resources.enter_context(loss_classifier.load(operation.losses, counters))
    return loss_classifier.attach(operation.index, new)


def _addressing_request(operation: _AddressingChange) -> bytes:
    match operation:
        case AddAddress(_, _, index, address):
            return netlink_messages.add_address(index, address)
        case RemoveAddress(_, _, index, address):
            return netlink_messages.remove_address(index, address)
        case AddRoute(_, destination, via):
            return netlink_messages.add_route(destination, via)
        case RemoveRoute(_, destination, via):
            return netlink_messages.remove_route(destination, via)
