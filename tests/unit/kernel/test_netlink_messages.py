"""Patched message templates equal pyroute2's encoding, for every request of testbed and any values."""

from __future__ import annotations

import inspect
import ipaddress
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.kernel import netlink_messages
from testbed.kernel.netlink import ETH_P_ALL, EXCEPTION_PRIORITY, PATCH_PRIORITY

SHAPED: dict[str, Callable[..., bytes]] = {
    name: function for name, function in vars(netlink_messages).items() if inspect.unwrap(function) is not function
}

VALUES: dict[str, st.SearchStrategy[object]] = {
    "Text": st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=15),
    "Mac": st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":")),
    "U32": st.one_of(st.integers(1, 2**31 - 1), st.sampled_from([1, 2, 1500, 65_536])),
    "Mtu": st.integers(1, 2**31 - 1),
    "Fixed": st.integers(0, 1),
}
PREFIX = st.integers(1, 32)
IP4 = st.integers(0, 2**32 - 1).map(lambda number: str(ipaddress.IPv4Address(number)))
IP6 = st.integers(0, 2**128 - 1).map(lambda number: str(ipaddress.IPv6Address(number)))


def arguments(function: Callable[..., bytes]) -> st.SearchStrategy[dict[str, object]]:
    """Return a strategy of arguments: optional ones may be None, addresses are all of one IP version."""
    return st.one_of(*(_arguments(function, VALUES | {"Ip": addresses}) for addresses in (IP4, IP6)))


def _arguments(
    function: Callable[..., bytes], strategies: dict[str, st.SearchStrategy[object]]
) -> st.SearchStrategy[dict[str, object]]:
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = str(parameter.annotation)
        values = PREFIX if name == "prefix" else strategies[kind.removesuffix(" | None")]
        arguments[name] = st.one_of(st.none(), values) if kind.endswith("None") else values
    return st.fixed_dictionaries(arguments)


def encoded_directly(function: Callable[..., bytes], values: dict[str, object]) -> bytes:
    message = inspect.unwrap(function)(**values)
    message.encode()
    return bytes(message.data)


def test_requests_of_every_kind_are_tested() -> None:
    assert {"make_bridge", "make_veth", "add_fdb_entry", "add_ip_route", "flush_fdb"} <= SHAPED.keys()


@pytest.mark.parametrize("name", sorted(SHAPED))
def test_a_patched_template_equals_the_encoded_message(name: str) -> None:
    function = SHAPED[name]

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(arguments(function))
    def check_encoding(values: dict[str, object]) -> None:
        assert function(**values) == encoded_directly(function, values)
        in_order = [values[name] for name in inspect.signature(function).parameters]
        assert function(*in_order) == encoded_directly(function, values)

    check_encoding()


def test_a_value_equal_to_a_placeholder_is_encoded_correctly() -> None:
    """The placeholders of a template are ordinary values, which arguments may equal."""
    for index in (0x3D5B_9700, 0x3D5B_9701, 5):
        values: dict[str, object] = {"index": index, "mtu": 0x3D5B_9700, "bridge": 0x3D5B_9702}
        assert netlink_messages.set_link(index, mtu=0x3D5B_9700, bridge=0x3D5B_9702) == encoded_directly(
            netlink_messages.set_link, values
        )


def test_an_address_is_written_with_its_prefix_length() -> None:
    assert netlink_messages.add_address(7, "10.0.0.1/16") == netlink_messages.add_ip(7, "10.0.0.1", 16)
    assert netlink_messages.remove_address(7, "fd00::1/64") == netlink_messages.remove_ip(7, "fd00::1", 64)
    assert netlink_messages.add_route("fd00::/48", "fd01::1") == netlink_messages.add_ip_route("fd00::", 48, "fd01::1")
    assert netlink_messages.remove_route("10.1.0.0/16", "10.0.0.9") == netlink_messages.remove_ip_route(
        "10.1.0.0", 16, "10.0.0.9"
    )


@pytest.mark.parametrize("kind", ["add", "remove"])
@given(index=st.integers(1, 2**31 - 1))
def test_a_clsact_qdisc_is_packed_as_pyroute2_encodes_it(kind: str, index: int) -> None:
    message = tcmsg()
    message["header"]["type"] = netlink_messages.RTM_NEWQDISC if kind == "add" else netlink_messages.RTM_DELQDISC
    message["header"]["flags"] = netlink_messages.NLM_F_REQUEST | (
        netlink_messages.NLM_F_CREATE if kind == "add" else 0
    )
    message["index"], message["handle"], message["parent"] = index, 0xFFFF_0000, netlink_messages.TC_H_CLSACT
    message["attrs"] = [("TCA_KIND", "clsact")]
    message.encode()
    packed = netlink_messages.add_clsact(index) if kind == "add" else netlink_messages.remove_clsact(index)
    assert packed == bytes(message.data)


def u32_filter(fields: dict[str, int], options: list[tuple[str, object]]) -> bytes:
    """Encode a filter of u32 that has no keys by pyroute2, without the flag that it sets on one of the nested attributes."""
    message = tcmsg()
    message["header"]["type"], message["header"]["flags"] = netlink_messages.RTM_NEWTFILTER, netlink_messages.CREATE
    for name, value in fields.items():
        message[name] = value
    selector = ("TCA_U32_SEL", {"flags": netlink_messages.TC_U32_TERMINAL, "keys": []})
    message["attrs"] = [("TCA_KIND", "u32"), ("TCA_OPTIONS", {"attrs": [*options, selector]})]
    message.encode()
    return bytes(message.data).replace(bytes.fromhex("24000280"), bytes.fromhex("24000200"))


def redirection(out: int) -> tuple[str, object]:
    parameters = {
        "action": netlink_messages.TC_ACT_STOLEN,
        "eaction": netlink_messages.TCA_EGRESS_REDIR,
        "ifindex": out,
    }
    mirred = {"attrs": [("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", {"attrs": [("TCA_MIRRED_PARMS", parameters)]})]}
    return "TCA_U32_ACT", {"attrs": [("TCA_ACT_PRIO_1", mirred)]}


@given(index=VALUES["U32"], out=VALUES["U32"], name=VALUES["Text"])
def test_filters_are_packed_as_pyroute2_encodes_them(index: int, out: int, name: str) -> None:
    incoming, outgoing = netlink_messages.TC_H_CLSACT_INGRESS, netlink_messages.TC_H_CLSACT_EGRESS
    fields = {"index": index, "handle": netlink_messages.PREPARED, "parent": incoming, "info": 3 << 16 | ETH_P_ALL}
    assert netlink_messages.redirect_ingress(index, out, 3, netlink_messages.PREPARED) == u32_filter(
        fields, [redirection(out)]
    )
    fields = {"index": index, "handle": 0, "parent": outgoing, "info": PATCH_PRIORITY << 16 | ETH_P_ALL}
    assert netlink_messages.redirect_egress(index, out) == u32_filter(fields, [redirection(out)])
    arrived = ("TCA_U32_INDEV", f"{name}\0")
    exceptions = {
        1: (netlink_messages.discard_from(index, name), [redirection(1)]),
        2: (netlink_messages.allow_from(index, name), []),
    }
    for handle, (packed, options) in exceptions.items():
        fields |= {"handle": handle, "info": EXCEPTION_PRIORITY << 16 | ETH_P_ALL}
        assert packed == u32_filter(fields, [arrived, *options])


def test_bring_up_imports_nothing_of_pyroute2s_traffic_control() -> None:
    program = (
        "import sys; from testbed.kernel import netlink_messages as messages\n"
        "messages.redirect_ingress(1, 2); messages.remove_redirection(1, 4); messages.add_qdisc(1, 'fq')\n"
        "print([name for name in sys.modules if 'tcmsg' in name])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
