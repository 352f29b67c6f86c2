"""Patching a shape's bytes gives what pyroute2 encodes, for every request that testbed sends and any values."""

from __future__ import annotations

import inspect
import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.kernel import netlink_messages

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
    """Random arguments; each optional one may be left out. Addresses are of one version."""
    return st.one_of(*(_arguments(function, VALUES | {"Ip": addresses}) for addresses in (IP4, IP6)))


def _arguments(
    function: Callable[..., bytes], known: dict[str, st.SearchStrategy[object]]
) -> st.SearchStrategy[dict[str, object]]:
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = str(parameter.annotation)
        values = PREFIX if name == "prefix" else known[kind.removesuffix(" | None")]
        arguments[name] = st.one_of(st.none(), values) if kind.endswith("None") else values
    return st.fixed_dictionaries(arguments)


def encoded_directly(function: Callable[..., bytes], values: dict[str, object]) -> bytes:
    message = inspect.unwrap(function)(**values)
    message.encode()
    return bytes(message.data)


def test_every_request_is_tested() -> None:
    assert {"make_bridge", "make_veth", "redirect_incoming", "add_ip_route", "flush_learned"} <= SHAPED.keys()


@pytest.mark.parametrize("name", sorted(SHAPED))
def test_patched_bytes_are_those_that_are_encoded(name: str) -> None:
    function = SHAPED[name]

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(arguments(function))
    def equal(values: dict[str, object]) -> None:
        assert function(**values) == encoded_directly(function, values)
        in_order = [values[name] for name in inspect.signature(function).parameters]
        assert function(*in_order) == encoded_directly(function, values)

    equal()


def test_a_value_equal_to_a_placeholder_is_encoded_correctly() -> None:
    """The placeholders are ordinary values, and the second message of a shape is patched correctly all the same."""
    for index in (0x3D5B_9700, 0x3D5B_9701, 5):
        values: dict[str, object] = {"index": index, "out": 0x3D5B_9700}
        assert netlink_messages.redirect_incoming(index, 0x3D5B_9700) == encoded_directly(
            netlink_messages.redirect_incoming, values
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
def test_a_hook_is_packed_as_pyroute2_encodes_it(kind: str, index: int) -> None:
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
