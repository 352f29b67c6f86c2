"""Rules as text: the frames that a condition matches, and errors with their column."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import TestbedError
from testbed.fates.header_fields import locate
from testbed.fates.headers import standard_fields
from testbed.fates.records import DROP, DUPLICATE, Fate, corrupt, delay
from testbed.fates.rules import Rule
from testbed.fates.tokens import RuleError
from tests.unit.fates.wire_frames import (
    LINK,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    C,
    arp,
    ethernet,
    ipv4,
    ipv6,
    ports,
    tagged,
    tcp,
    udp,
)

FRAMES = {
    "tcp to 5001": tcp(40_000, 5001),
    "tcp from 5001": tcp(5001, 40_000, flags=0x12, sender="10.0.0.2", receiver="10.0.0.1"),
    "syn to 80": tcp(40_000, 80, flags=0x02),
    "udp": udp(40_000, 53, b"x" * 100),
    "udp with options": udp(40_000, 53, options=bytes(4)),
    "later fragment": udp(40_000, 53, offset=5),
    "tagged udp": tagged(udp(40_000, 53), 7, priority=3),
    "udp over ipv6": ipv6(ports(40_000, 53) + b"\0\x08\0\0", 17),
    "ping": ipv4(b"\x08\0\0\0\x12\x34\0\x07", 1),
    "arp request": arp(),
    "other": ethernet(b"\x03", source=C),
    "short": b"\x02\0\0",
}
TCP = {"tcp to 5001", "tcp from 5001", "syn to 80"}
UDP = {"udp", "udp with options", "tagged udp", "udp over ipv6"}
IPV4 = {*TCP, *UDP, "later fragment", "ping"} - {"udp over ipv6"}
ALL = set(FRAMES)


def matching_frames(condition: str, elapsed: int = 0) -> set[str]:
    fields = standard_fields()
    test = Rule.parse(f"drop {condition}", fields).when.compile(fields, LINK, "forward")
    return {name for name, frame in FRAMES.items() if test(elapsed, frame, locate(frame))}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", ALL),
        ("tcp", TCP),
        ("udp", UDP),
        ("ip", IPV4),
        ("ipv6", {"udp over ipv6"}),
        ("vlan", {"tagged udp"}),
        ("arp", {"arp request"}),
        ("icmp", {"ping"}),
        ("eth", ALL - {"short"}),
        ("tcp.dport == 5001", {"tcp to 5001"}),
        ("tcp.dport != 5001", {"tcp from 5001", "syn to 80"}),
        ("not tcp.dport == 5001", ALL - {"tcp to 5001"}),
        ("!(tcp.dport == 5001)", ALL - {"tcp to 5001"}),
        ("tcp.dport in (80, 5001)", {"tcp to 5001", "syn to 80"}),
        ("tcp.dport in {80, 0x1389}", {"tcp to 5001", "syn to 80"}),
        ("tcp.dport < 100", {"syn to 80"}),
        ("tcp.dport <= 80 or tcp.sport >= 5001 and tcp.sport > 40000", {"syn to 80"}),
        ("(tcp.dport == 80 or udp) and not vlan", {"syn to 80", *UDP} - {"tagged udp"}),
        ("tcp.flags & 0x12 == 0x02", {"syn to 80"}),
        ("tcp.flags & 2", {"tcp from 5001", "syn to 80"}),
        ("tcp.flags.syn and tcp.flags.ack == 0", {"syn to 80"}),
        ("tcp.flags.syn && !tcp.flags.ack || arp", {"syn to 80", "arp request"}),
        ("udp.dport == 53", UDP),
        ("udp.len == 108", {"udp"}),
        ("ip.src == 10.0.0.2", {"tcp from 5001"}),
        ("ip.src == 10.0.0.2/32", {"tcp from 5001"}),
        ("ip.src == 10.0.0.0/24", IPV4),
        ("ip.src != 10.0.0.0/24", set()),
        ("ip.dst in (10.0.0.1, 192.168.0.0/16)", {"tcp from 5001"}),
        ("ip.proto == 17 and ip.frag", {"later fragment"}),
        ("ipv6.src == fd00::1 and ipv6.dst == fd00::/64", {"udp over ipv6"}),
        ("ipv6.nh == 17", {"udp over ipv6"}),
        ("vlan.id == 7 and vlan.prio == 3", {"tagged udp"}),
        ("eth.type == 0x8100", {"tagged udp"}),
        ("eth.src == 02:00:00:00:00:03", {"other"}),
        ("eth.src == 02-00-00-00-00-03", {"other"}),
        ("icmp.type == 8 and icmp.seq == 7", {"ping"}),
        ("arp.op == 1 and arp.psrc == 10.0.0.1 and arp.hwsrc == 02:00:00:00:00:01", {"arp request"}),
        ("frame.len > 100", {"udp"}),
        (f'link == "{LINK}"', ALL),
        (f"link == {LINK} and direction == forward", ALL),
        ("link != n2:eth0--s1:2", ALL),
        (f"link in (x--y, {LINK}) and arp", {"arp request"}),
        ("link == n2:eth0--s1:2 or arp", {"arp request"}),
        ("direction == backward", set()),
        ("direction != backward and arp", {"arp request"}),
        ("not link == n2:eth0--s1:2", ALL),
    ],
)
def test_a_condition_matches_the_expected_frames(condition: str, expected: set[str]) -> None:
    assert matching_frames(condition) == expected


@pytest.mark.parametrize(
    ("condition", "begin", "end"),
    [
        ("after(1s)", SECOND, -1),
        ("before(1s)", 0, SECOND),
        ("between(500us, 1ms)", 500 * MICROSECOND, MILLISECOND),
        ("not before(2ms)", 2 * MILLISECOND, -1),
        ("arp and after(1ms) and before(2ms)", MILLISECOND, 2 * MILLISECOND),
    ],
)
def test_a_time_window_counts_from_the_time_of_the_rule(condition: str, begin: int, end: int) -> None:
    for elapsed in (0, begin - 1, begin, end - 1, end, begin + 5 * SECOND):
        if elapsed >= 0:
            is_inside = elapsed >= begin and (end < 0 or elapsed < end)
            assert ("arp request" in matching_frames(condition, elapsed)) is is_inside


@pytest.mark.parametrize(
    ("text", "fate"),
    [
        ("drop", DROP),
        ("duplicate udp", DUPLICATE),
        ("delay 1.5ms", delay(1_500_000)),
        ("corrupt", corrupt(1)),
        ("corrupt udp", corrupt(1)),
        ("corrupt 12 udp", corrupt(12)),
        ("corrupt udp.sport", corrupt(1)),
        ("corrupt in udp.sport", corrupt(1, "udp.sport")),
        ("corrupt udp.sport keep-check", corrupt(1, "udp.sport")),
        ("corrupt 3 udp.sport mend-check udp", corrupt(3, "udp.sport", mend=True)),
        ("corrupt 3 keep-check udp.sport", corrupt(3)),
    ],
)
def test_an_action_is_parsed_as_a_fate(text: str, fate: Fate) -> None:
    assert Rule.parse(f"  {text} ", standard_fields()).fate == fate


@pytest.mark.parametrize(
    ("text", "marked", "what", "suggestion"),
    [
        ("drop tcp.dprt == 5001", "tcp.dprt", "no field is called 'tcp.dprt'", "tcp.dport"),
        ("drop tcp.dport == 5001 and nht(3)", "nht", "expected one of nth", "nth"),
        ("dorp udp", "dorp", "expected an action: drop, delay, duplicate, corrupt or set", "drop"),
        ("", "", "found the rule's end, expected an action", ""),
        ("drop upd", "upd", "no field is called 'upd'", "udp"),
        ("drop udp and", "", "found the rule's end, expected a condition", ""),
        ("drop udp or or arp", "or", "found 'or', expected a condition", ""),
        ("drop udp arp", "arp", "expected 'and', 'or' or the rule's end", ""),
        ("drop (udp or arp", "", "expected ')'", ""),
        ("drop udp)", ")", "expected 'and', 'or' or the rule's end", ""),
        ("drop tcp.dport = 5001", "=", "'=' is not allowed in a rule", "=="),
        ("drop tcp.dport == ", "", "expected a number (tcp.dport)", ""),
        ("drop tcp.dport == 65536", "65536", "at most 65,535 (0xffff)", ""),
        ("drop tcp.dport == http", "http", "expected a number", ""),
        ("drop tcp.flags & 0x100", "0x100", "at most 255", ""),
        ("drop tcp.flags & 0", "0", "the mask after '&' must not be 0", ""),
        ("drop ip.src == 10.0.0", "10.0.0", "an IPv4 address, such as 10.0.0.1", ""),
        ("drop ip.src == fd00::1", "fd00::1", "an IPv4 address", ""),
        ("drop ip.src == 0.0.0.0/0", "0.0.0.0/0", "use the condition 'ip' instead", ""),
        ("drop ip.src < 10.0.0.1", "<", "compare it with '==', '!=' or 'in'", ""),
        ("drop eth.src == 02:00:00:00:00", "02:00:00:00:00", "a hardware address", ""),
        ("delay udp", "udp", "expected a duration", ""),
        ("delay 10 udp", "10", "a bare number has no unit", ""),
        ("delay 0s", "0s", "the delay must be more than 0", ""),
        ("delay", "", "expected a duration", ""),
        ("corrupt 0 udp", "0", "must be 1 to 4,096", ""),
        ("corrupt 9999 udp", "9999", "at most 4,096", ""),
        ("drop nth(0)", "0", "counted from 1", ""),
        ("drop nth(x)", "x", "expected a number (a frame's number)", ""),
        ("drop nth(3, ip.sr)", "ip.sr", "no field is called", "ip.src"),
        ("drop nth 3", "nth", "without its argument in parentheses", "nth(3)"),
        ("drop udp or nth(3)", "nth", "it is only allowed in a top-level 'and'", ""),
        ("drop nth(3) or udp", "or", "a count is only allowed in a top-level 'and'", ""),
        ("drop (udp and nth(3))", "nth", "it is only allowed in a top-level 'and'", ""),
        ("drop not nth(3)", "nth", "a count cannot be negated", ""),
        ("drop between(5, 2)", "2", "must be at least 5", ""),
        ("drop between(2)", "2", "two numbers of frames or two durations", ""),
        ("drop between(2s, 1s)", "1s", "the end must be after the start", ""),
        ("drop after(1s, 2s)", "2s", "found '2s', expected no further argument", ""),
        ("drop direction == forwrad", "forwrad", "expected forward or backward", "forward"),
        ("drop link == ", "", "expected a link's name", ""),
        ('drop link == "n1', '"n1', "not closed", ""),
        ("drop udp; arp", ";", "';' is not allowed in a rule", ""),
        ("drop " + "(" * 60 + "udp", "(", "more than 50 levels", ""),
    ],
)
def test_an_error_points_at_the_invalid_token(text: str, marked: str, what: str, suggestion: str) -> None:
    with pytest.raises(RuleError) as caught:
        Rule.parse(text, standard_fields())
    error = caught.value
    assert what in error.message
    assert error.suggestion == suggestion
    assert text[error.column - 1 :].startswith(marked)
    assert error.column > len(text.rstrip()) or marked
    first, source_line, carets = str(error).split("\n")
    assert first.startswith(f"rule, column {error.column}: ")
    assert source_line == f"  {text}"
    assert carets == " " * (error.column + 1) + "^" * max(len(marked), 1)
    assert not suggestion or first.endswith(f"did you mean {suggestion!r}?")


def test_an_unknown_link_is_an_error_if_the_links_are_known() -> None:
    with pytest.raises(RuleError, match="no link is called 'n1:eth0--s1:2' — did you mean 'n1:eth0--s1:1'"):
        Rule.parse("drop link == n1:eth0--s1:2", standard_fields(), [LINK, "n2:eth0--s2:4"])


def parsed(text: str) -> Rule | RuleError:
    try:
        return Rule.parse(text, standard_fields())
    except RuleError as error:
        return error


@given(st.text(st.sampled_from([*string.ascii_lowercase, *'0123456789.:/-_ ()=!<>&|,"{}\tä']), max_size=40))
def test_arbitrary_text_is_a_rule_or_an_error_with_a_column(text: str) -> None:
    for prefix in ("", "drop ", "corrupt 3 tcp.dport == ", "delay 1ms nth("):
        result = parsed(prefix + text)
        if isinstance(result, RuleError):
            assert 1 <= result.column <= len(prefix + text) + 1
            assert isinstance(result, TestbedError)


TOKENS = [
    *("drop", "delay", "corrupt", "udp", "tcp.dport", "ip.src", "link", "direction", "and", "or", "not", "(", ")"),
    *("==", "!=", "in", "&", ",", "3", "1ms", "nth", "every", "between", "after", "10.0.0.0/8", "forward"),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=14))
def test_arbitrary_tokens_are_a_rule_or_an_error_with_a_column(words: list[str]) -> None:
    text = " ".join(["drop", *words])
    result = parsed(text)
    if isinstance(result, RuleError):
        assert 1 <= result.column <= len(text) + 1
    else:
        test = result.when.compile(standard_fields(), LINK, "forward")
        assert {test(0, frame, locate(frame)) for frame in FRAMES.values()} <= {True, False}
