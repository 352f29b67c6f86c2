"""Errors of an invalid description: all are reported at once, each with its path and the nearest valid name."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import DescriptionError, NotFoundError, PermissionDeniedError, Problem
from testbed.spec.loader import MAX_FILE_SIZE, from_dict, load, parse
from testbed.spec.model import Description, Link, Nic, Node, Switch
from testbed.spec.resolver import resolve

STAR = """
name = "c"
node = [{name = "n1"}, {name = "n2"}, {name = "n3"}]
switch = [{name = "s1"}]
"""


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(DescriptionError) as caught:
        parse(text, "cluster.toml")
    assert str(caught.value).startswith("cluster.toml: ")
    return caught.value.problems


def only_problem(text: str) -> Problem:
    problems = problems_of(text)
    assert len(problems) == 1, problems
    return problems[0]


def test_a_misspelt_key_of_a_link_gets_the_nearest_key() -> None:
    problem = only_problem(STAR + '[[link]]\nends = ["n1", "s1"]\n[[link]]\nends = ["n2", "s1"]\ndealy = "1ms"')
    assert (problem.path, problem.found, problem.suggestion) == ("link[2]", "unknown key 'dealy'", "delay")
    assert "did you mean 'delay'?" in str(problem)


def test_a_listed_link_parallel_to_a_generated_one_is_rejected() -> None:
    shape = 'name = "c"\n[generate]\nshape = "star"\nnodes = 2\n'
    problem = only_problem(shape + '[[link]]\nends = ["s1", "n2"]\nloss = "5%"')
    assert (problem.path, problem.found) == (
        "link[1].ends",
        "a second cable between s1 and n2, which [generate] has joined",
    )
    assert "[defaults.link]" in problem.expected
    parallel_links = parse(shape + '[[link]]\nends = ["s1", "n2:eth1"]\nloss = "5%"', "cluster.toml")
    assert len(parallel_links.links) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("N1", "a name that differs from 'n1' in more than case"),
        ("7", "programs take a number for an IP address"),
        ("0x1F", "programs take a number for an IP address"),
        ("Localhost", "'localhost' for the node itself"),
    ],
)
def test_a_node_name_that_resolves_to_another_host_is_rejected(name: str, expected: str) -> None:
    problem = only_problem(f'name = "c"\nnode = [{{name = "n1"}}, {{name = "{name}"}}, {{name = "0x1G"}}]\n')
    assert (problem.path, problem.found) == (f"node[2] ({name}).name", repr(name))
    assert expected in problem.expected


def test_a_rate_of_0_is_rejected_with_the_forms_for_unlimited_and_blocked() -> None:
    problem = only_problem(STAR + '[[link]]\nends = ["n1", "s1"]\nrate = "0"\n')
    assert problem.path == "link[1].rate"
    assert "'unlimited'; to block all frames, use a loss of '100%'" in problem.expected
    (link,) = parse(
        STAR + '[defaults.link]\nrate = "1mbit"\n[[link]]\nends = ["n1", "s1"]\nrate = "unlimited"\n', "x"
    ).links
    assert link.rate == 0


def test_unknown_keys_are_found_everywhere() -> None:
    problems = problems_of(
        """
        name = "c"
        colour = "red"
        nodes = []
        [defaults]
        mto = 9000
        [defaults.link]
        los = "1%"
        [[node]]
        name = "n1"
        cpu = 3
        [[node.nic]]
        mak = "02:00:00:00:00:01"
        [[link]]
        ends = ["n1", "n1"]
        forward = {rat = "1gbit"}
        """
    )
    assert {(problem.path, problem.suggestion) for problem in problems} == {
        ("", ""), ("", "node"), ("defaults", "mtu"), ("defaults.link", "loss"), ("node[1] (n1)", "cpus"),
        ("node[1] (n1).nic[1]", "mac"), ("link[1].forward", "rate"), ("link[1].ends", ""),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("delay", '"10"', "ns, us, ms, s"),
        ("delay", "10", "bare number has no unit"),
        ("delay", '"10kg"', "a duration"),
        ("rate", '"10us"', "a rate"),
        ("rate", '"-1gbit"', "not negative"),
        ("rate", "nan", "not NaN"),
        ("rate", "inf", "not infinite"),
        ("loss", '"101%"', "'0%' to '100%'"),
        ("loss", "1.01", "'0%' to '100%'"),
        ("loss", "true", "a probability"),
        ("queue", "0", "above 0"),
        ("queue", "100", "room for a frame of 1,514 bytes or more"),
        ("jitter", '"1us"', "a delay as well"),
        ("reorder", '"1%"', "a delay as well"),
        ("distribution", '"normal"', "a jitter as well"),
        ("distribution", '"norml"', "uniform, normal, pareto, table or trace"),
        ("datapath", '"kernel"', "auto, direct, netem, tc or relay"),
    ],
)
def test_an_invalid_value_of_a_link_is_rejected_with_the_expected_form(key: str, value: str, expected: str) -> None:
    problem = only_problem(STAR + f'[[link]]\nends = ["n1", "s1"]\n{key} = {value}')
    assert problem.path == f"link[1].{key}"
    assert expected in problem.expected


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "a b", "", "-a", "a.b", "ä", "x" * 300, "a\\n", "a\\u0000"], ids=ascii
)
def test_names_that_look_like_paths_or_options_are_rejected(name: str) -> None:
    for text in (
        f'name = "{name}"\nnode = [{{name = "n1"}}]',
        f'name = "c"\nnode = [{{name = "{name}"}}]',
        f'name = "c"\nnode = [{{name = "n1"}}]\nswitch = [{{name = "{name}"}}]',
    ):
        problem = only_problem(text)
        assert "1 to 63 letters" in problem.expected
        assert problem.path.endswith("name")
        assert len(problem.found) <= 62
        assert problem.found.isprintable()


def test_an_unknown_node_in_a_link_gets_the_nearest_name() -> None:
    problem = only_problem(
        'name = "c"\nnode = [{name = "head"}, {name = "worker"}]\n[[link]]\nends = ["head", "wroker:eth1"]'
    )
    assert problem.path == "link[1].ends[2]"
    assert problem.found == "unknown name 'wroker'"
    assert problem.suggestion == "worker:eth1"


def test_a_name_used_twice_is_rejected() -> None:
    problems = problems_of('name = "c"\nnode = [{name = "a"}, {name = "a"}]\nswitch = [{name = "a"}]')
    assert [problem.path for problem in problems] == ["node[2] (a).name", "switch[1] (a).name"]
    assert all("node[1] (a) has this one" in problem.expected for problem in problems)


def test_two_links_at_one_port_are_rejected() -> None:
    problems = problems_of(
        STAR
        + '[[link]]\nends = ["n1:eth0", "s1:4"]\n[[link]]\nends = ["n1:eth0", "n2"]\n[[link]]\nends = ["n3", "s1:4"]'
    )
    assert [(problem.path, problem.found) for problem in problems] == [
        ("link[2].ends[1]", "'n1:eth0'"),
        ("link[3].ends[2]", "'s1:4'"),
    ]
    assert all("link[1] is plugged into this one" in problem.expected for problem in problems)


def test_a_link_without_two_different_ends_is_rejected() -> None:
    assert "two different" in only_problem(STAR + '[[link]]\nends = ["n1", "n1"]').expected
    assert only_problem(STAR + '[[link]]\nends = ["n1"]').expected == "two ends"
    assert only_problem(STAR + '[[link]]\nends = ["n1", "n2", "n3"]').expected == "two ends"


@pytest.mark.parametrize("port", ["0", "1024", "eth0", "01"])
def test_an_invalid_port_number_of_a_switch_is_rejected(port: str) -> None:
    assert only_problem(STAR + f'[[link]]\nends = ["n1", "s1:{port}"]').expected == "a port of s1 from 1 to 1,023"


def test_a_myrinet_switch_has_eight_ports_by_default() -> None:
    text = 'name = "c"\nnode = [' + ", ".join(f'{{name = "n{i}"}}' for i in range(1, 10)) + "]\n"
    links = "".join(f'[[link]]\nends = ["n{i}", "s"]\n' for i in range(1, 10))
    problem = only_problem(text + '[[switch]]\nname = "s"\nkind = "myrinet"\n' + links)
    assert problem.found == "9 links"
    assert "at most 8" in problem.expected
    parse(text + '[[switch]]\nname = "s"\nkind = "myrinet"\nports = 16\n' + links, "x")


def test_a_bridge_of_more_than_1023_ports_is_rejected_with_the_advice_to_use_two() -> None:
    for source in (
        '[generate]\nshape = "star"\nnodes = 1024',
        '[[node]]\nname = "n1"\n[[switch]]\nname = "s1"\nports = 2000',
        '[generate]\nshape = "star"\nnodes = 1023\n[[node]]\nname = "one-more"\n[[link]]\nends = ["one-more", "s1"]',
    ):
        problem = only_problem(f'name = "c"\n{source}')
        assert "1,023 ports" in problem.expected
        assert "two switches" in problem.expected
    with pytest.raises(DescriptionError, match="two switches"):
        load("star-2000")
    with pytest.raises(DescriptionError, match="two switches"):
        Description.star(2000)


def test_switches_of_different_kinds_cannot_be_linked() -> None:
    message = only_problem(
        'name = "c"\nnode = [{name = "n"}]\nswitch = [{name = "s"}, {name = "m", kind = "myrinet"}]\n'
        '[[link]]\nends = ["s", "m"]'
    )
    assert message.expected == "switches of one kind"


TWO_NODES_AND_ATM_SWITCH = 'name = "c"\nnode = [{name = "n1"}, {name = "n2"}]\nswitch = [{name = "s1", kind = "atm"}]\n'


def test_a_link_at_a_switch_has_the_kind_of_the_switch() -> None:
    links = '[[link]]\nends = ["n1", "s1"]\n[[link]]\nends = ["n2", "s1"]\nkind = {}'
    problem = only_problem(TWO_NODES_AND_ATM_SWITCH + links.format('"myrinet"'))
    assert (problem.path, problem.found) == ("link[2].kind", "'myrinet'")
    assert problem.expected == "'atm', the kind of the switch s1, or no kind: it is implied"
    assert only_problem(TWO_NODES_AND_ATM_SWITCH + links.format('"ethernet"')).path == "link[2].kind"
    layout = resolve(parse(TWO_NODES_AND_ATM_SWITCH + links.format('"atm"'), "x"))
    assert [link.kind for link in layout.links] == ["atm", "atm"]


@pytest.mark.parametrize(
    ("keys", "path", "expected"),
    [
        ('kind = "token-ring"', "link[1].kind", "ethernet, myrinet or atm"),
        (
            'kind = "atm"\ndatapath = "direct"',
            "link[1].datapath",
            "'auto' or 'relay': the relay carries links of kind atm",
        ),
        (
            'kind = "atm"\ndatapath = "netem"',
            "link[1].datapath",
            "'auto' or 'relay': the relay carries links of kind atm",
        ),
        ('kind = "atm"\njitter = "1us"\ndelay = "1ms"', "link[1].jitter", "keeps the order of its cells"),
        ('kind = "myrinet"\nqueue = "64KiB"', "link[1].queue", "keeps the order of its frames"),
    ],
)
def test_a_key_that_the_kind_of_a_cable_does_not_support_is_rejected(keys: str, path: str, expected: str) -> None:
    text = 'name = "c"\nnode = [{name = "n1"}, {name = "n2"}]\n[[link]]\nends = ["n1", "n2"]\n'
    problem = only_problem(text + keys)
    assert problem.path == path
    assert expected in problem.expected
    (link,) = resolve(parse(text, "x")).links
    assert link.kind == "ethernet"


def cluster_with_nic(*lines: str) -> str:
    """Return a description of two nodes on a switch. lines: keys of n1's NIC."""
    return (
        'name = "c"\n[[switch]]\nname = "s1"\n[[node]]\nname = "n1"\n[[node.nic]]\n'
        + "\n".join(lines)
        + '\n[[node]]\nname = "n2"\n[[node.nic]]\naddresses = ["10.0.0.9/16"]\nmac = "02:00:00:00:00:09"\n'
        + '[[link]]\nends = ["n1", "s1"]\n[[link]]\nends = ["n2", "s1"]\n'
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('addresses = ["10.0.0.9/16"]', "another address: n1's eth0 has this one"),
        ('addresses = ["192.168.0.1/16"]', "an address in the cluster's network 10.0.0.0/8"),
        ('addresses = ["10.0.3.1/24"]', "an address of its segment's network"),
        ('addresses = ["10.5.0.1/16"]', "an address of its segment's network"),
        ('addresses = ["10.0.0.1"]', "prefix length"),
        ('addresses = ["10.0.0.0/16"]', "this is the network"),
        ('addresses = ["10.0.255.255/16"]', "broadcast"),
        ('addresses = ["10.0.0.256/16"]', "an IPv4 or IPv6 address"),
        ('addresses = ["224.0.0.1/16"]', "unicast"),
        ('addresses = ["fe80::1/64"]', "link-local"),
        ('addresses = [7]', "an IPv4 or IPv6 address"),
        ('addresses = "10.0.0.1/16"', "a list"),
        ('mac = "02:00:00:00:00:09"', "another hardware address"),
        ('mac = "03:00:00:00:00:01"', "unicast"),
        ('mac = "02:00:00:00:00"', "a hardware address such as"),
        ('mac = "00:00:00:00:00:00"', "other than zero"),
        ("mtu = 67", "at least 68"),
        ("mtu = 65536", "at most 65,535"),
        ('mtu = "1500"', "a whole number"),
        ('mtu = 1000\naddresses = ["fd00::1/64"]', "at least 1,280"),
        ('name = "lo"', "an interface name"),
        ('name = "a-name-of-16-chr"', "an interface name"),
        ('name = "a b"', "an interface name"),
        ('name = "a/b"', "an interface name"),
        ('name = "eth%d"', "an interface name"),
        ('name = ".."', "an interface name"),
        ('name = "eth7"', "a link with the end 'n1:eth7'"),
    ],
)  # fmt: skip
def test_an_invalid_nic_is_rejected_with_the_expected_form(line: str, expected: str) -> None:
    problem = only_problem(cluster_with_nic(line))
    assert expected in problem.expected
    assert ".nic[1]" in problem.path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('cpus = "3-1"', "CPU numbers"),
        ('cpus = "0-99999999999999"', "CPU numbers"),
        ("cpus = [0, -1]", "CPU numbers"),
        ("cpus = [true]", "CPU numbers"),
        ('cpus = ""', "CPU numbers"),
        ("cpu_share = 0", "more than 0"),
        ("cpu_share = nan", "a number, not NaN"),
        ('memory = "1 gig"', "a size"),
        ('environment = {"A=B" = "x"}', "environment variable"),
        ("environment = {A = 1}", "text"),
        ('files = {"etc/motd" = "x"}', "absolute path"),
        ('files = {"/etc/../x" = "x"}', "absolute path"),
        ('private_directories = ["run/x"]', "absolute path"),
        ('private_directories = ["/"]', "absolute path"),
        ('private_directories = ["/run/x/"]', "absolute path"),
    ],
)
def test_an_invalid_node_is_rejected_with_the_expected_form(line: str, expected: str) -> None:
    problem = only_problem(f'name = "c"\n[[node]]\nname = "n1"\n{line}')
    assert expected in problem.expected
    assert problem.path.startswith("node[1] (n1).")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('network = "10.0.0.0"', "an IPv4 network"),
        ('network = "10.0.0.1/8"', "without bits after its prefix"),
        ('network = "fd00::/48"', "('network6' has the IPv6 addresses)"),
        ('network = "127.0.0.0/8"', "unicast"),
        ('network = "10.0.0.0/31"', "at most /30"),
        ('network = "10.0.0.0/30"', "room for 3 NICs"),
        ('network6 = "10.0.0.0/8"', "an IPv6 network"),
        ('network6 = "fd00::/65"', "at most /64"),
        ('network6 = "fd00::/48"\ndefaults = {mtu = 1000}', "at least 1,280"),
        ("seed = -1", "at least 0"),
        ("seed = 1.5", "a whole number"),
        ("defaults = 5", "a table"),
    ],
)
def test_an_invalid_top_level_key_is_rejected_with_the_expected_form(line: str, expected: str) -> None:
    problem = only_problem(line + STAR + "".join(f'[[link]]\nends = ["n{i}", "s1"]\n' for i in (1, 2, 3)))
    assert expected in problem.expected


@pytest.mark.parametrize(
    ("generate", "path", "expected"),
    [
        ('shape = "start"', "generate.shape", "back-to-back, star, line"),
        ("nodes = 3", "generate.shape", "back-to-back, star, line"),
        ('shape = "star"\nnodes = 0', "generate.nodes", "at least 1"),
        ('shape = "star"', "generate", "the key 'nodes'"),
        ('shape = "ring"\nnodes = 2', "generate.nodes", "at least 3"),
        ('shape = "fat-tree"\nk = 3', "generate.k", "an even number"),
        ('shape = "line"\nnodes = 16385', "generate.nodes", "at most 16,384"),
        ('shape = "line"\nnodes = 99999999', "generate.nodes", "at most 16,384"),
        ('shape = "full-mesh"\nnodes = 201', "generate.nodes", "at most 200"),
        ('shape = "fat-tree"\nk = 42', "generate.k", "at most 40"),
        ('shape = "star"\nnodes = "4"', "generate.nodes", "a whole number"),
        ('shape = "star"\nnode = 4', "generate", "nodes or shape"),
        ('shape = "dumbbell"\nleft = 1\nright = -1', "generate.right", "at least 1"),
        ('shape = "now"\nkind = "token-ring"', "generate.kind", "ethernet, myrinet or atm"),
    ],
)
def test_an_invalid_shape_is_rejected_with_the_expected_form(generate: str, path: str, expected: str) -> None:
    problems = problems_of(f'name = "c"\n[generate]\n{generate}')
    assert any(problem.path == path and expected in problem.expected for problem in problems), problems


LINK = '[[link]]\nends = ["n1", "s1"]\n'
NODE = 'name = "c"\n[[node]]\nname = "n1"\n'
SHAPE = 'name = "c"\n[generate]\nshape = '


@pytest.mark.parametrize(
    ("text", "largest", "too_large", "path", "expected"),
    [
        (SHAPE + '"dumbbell"\nright = 1\nleft = LIMIT', "1022", "1023", "generate.left", "less than 1,023"),
        (SHAPE + '"dumbbell"\nleft = 1\nright = LIMIT', "1022", "1023", "generate.right", "less than 1,023"),
        (NODE + "cpus = [LIMIT]", "8191", "8192", "node[1] (n1).cpus", "CPU numbers below 8,192"),
        (STAR + LINK + 'corrupt = "1%"\ncorrupt_bits = LIMIT', "4096", "4097", "link[1].corrupt_bits", "at most 4,096"),
        (STAR + LINK + 'rate = "1gbit"\noverhead = LIMIT', "1024", "1025", "link[1].overhead", "at most 1,024"),
        (STAR + LINK + 'queue_frames = LIMIT\nrate = "1gbit"', f"{2**31 - 1}", f"{2**31}", "link[1].queue_frames",
         "at most 2,147,483,647"),
        (STAR + LINK + 'loss_pattern = "1-LIMIT"', "100000", "100001", "link[1].loss_pattern",
         "at most 100,000 numbers of frames; a longer pattern repeats with 'every N'"),
    ],
)  # fmt: skip
def test_a_limit_is_valid_and_a_value_beyond_it_is_rejected_with_the_limit(
    text: str, largest: str, too_large: str, path: str, expected: str
) -> None:
    parse(text.replace("LIMIT", largest), "cluster.toml")
    problem = only_problem(text.replace("LIMIT", too_large))
    assert problem.path == path
    assert expected in problem.expected


def test_a_switch_with_listed_ports_has_no_others() -> None:
    links = "".join(f'[[link]]\nends = ["n{number}", "s1"]\n' for number in (1, 2, 3))
    nodes = 'name = "c"\nnode = [{name = "n1"}, {name = "n2"}, {name = "n3"}]\n'
    parse(nodes + 'switch = [{name = "s1", ports = 3}]\n' + links, "cluster.toml")
    problem = only_problem(nodes + 'switch = [{name = "s1", ports = 2}]\n' + links)
    assert problem.found == "3 links"
    assert problem.expected == "at most 2, one for each of its ports"


def test_errors_of_fields_and_between_elements_are_reported_together() -> None:
    problems = problems_of(
        """
        name = "my cluster"
        seed = "x"
        [[node]]
        name = "n1"
        memory = "lots"
        [[node]]
        name = "n1"
        [[switch]]
        name = "s1"
        kind = "etherne"
        [[link]]
        ends = ["n1", "s1:3"]
        delay = "10"
        [[link]]
        ends = ["n9", "s1:3"]
        loss = "200%"
        jitter = "3us"
        """
    )
    assert {problem.path for problem in problems} == {
        "name", "seed", "node[1] (n1).memory", "node[2] (n1).name", "switch[1] (s1).kind", "link[1].delay",
        "link[2].loss", "link[2].ends[1]", "link[2].ends[2]",
    }  # fmt: skip
    assert "my-cluster" in {problem.suggestion for problem in problems}


def test_consequences_of_an_error_are_not_reported_again() -> None:
    problem = only_problem(STAR + '[[link]]\nends = ["n1", "s1"]\ndealy = "1ms"\njitter = "1us"')
    assert problem.suggestion == "delay"


def test_a_contradiction_in_the_defaults_is_reported_once() -> None:
    links = "".join(f'[[link]]\nends = ["n{i}", "s1"]\n' for i in (1, 2, 3))
    problem = only_problem(STAR + '[defaults.link]\njitter = "1us"\n' + links)
    assert problem.path == "defaults.link.jitter"


def test_a_default_that_each_link_completes_is_no_contradiction() -> None:
    parse(STAR + '[defaults.link]\njitter = "1us"\n[[link]]\nends = ["n1", "s1"]\ndelay = "1ms"', "x")


def test_a_direct_link_at_a_switch_or_with_impairments_is_rejected() -> None:
    assert "two nodes" in only_problem(STAR + '[[link]]\nends = ["n1", "s1"]\ndatapath = "direct"').expected
    problem = only_problem(STAR + '[[link]]\nends = ["n1", "n2"]\ndatapath = "direct"\nloss = "1%"')
    assert problem.path == "link[1].datapath"
    assert "cannot have any" in problem.expected


def test_overlapping_networks_of_different_segments_are_rejected() -> None:
    message = only_problem(
        'name = "c"\n[[link]]\nends = ["a", "b"]\n[[link]]\nends = ["c", "d"]\n'
        + "".join(
            f'[[node]]\nname = "{name}"\n[[node.nic]]\naddresses = ["{address}"]\n'
            for name, address in [
                ("a", "10.1.0.1/16"),
                ("b", "10.1.0.2/16"),
                ("c", "10.1.2.1/24"),
                ("d", "10.1.2.2/24"),
            ]
        )
    )
    assert "does not overlap 10.1.0.0/16" in message.expected


def test_tables_of_the_wrong_form_are_rejected() -> None:
    assert only_problem('name = "c"\nnode = 5').expected == "tables that begin with [[node]]"
    assert problems_of('name = "c"\n[node]\nname = "n1"')[0].found == "[node]"
    assert problems_of('name = "c"\nnode = [5]')[0].expected == "a table"


def test_a_long_value_is_shortened() -> None:
    problem = only_problem(STAR + f'[[link]]\nends = ["n1", "s1"]\ndelay = "{"x" * 5000}"')
    assert len(problem.found) <= 60


def test_a_syntax_error_names_line_and_column() -> None:
    problem = only_problem('name = "c"\n[[node]\nname = "n1"')
    assert problem.path == "line 2, column 7"
    assert problem.found == "'[[node]'"
    assert only_problem('name = "c"\nname = "d"').path.startswith("line 2")
    assert "valid TOML" in only_problem("[a]\n[a]").expected
    assert only_problem('name = "c').path.startswith("line 1")


def test_deeply_nested_or_huge_toml_is_an_error() -> None:
    assert "nested" in only_problem("a = " + "[" * 50_000).found
    assert "nested" in only_problem('name = "c"\n' + "a." * 500_000 + "a = 1").found
    assert "nested" in only_problem('name = "c"\nx = {' + "'a' . " * 100_000 + "a = 1}").found
    assert only_problem("a = " + "9" * 5000).expected.startswith("valid TOML")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file_is_rejected_since_a_cluster_needs_a_node(text: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text(text)
    with pytest.raises(DescriptionError, match="at least one node") as caught:
        load(file)
    assert len(caught.value.problems) == 1


def test_a_cluster_without_nodes_is_rejected() -> None:
    assert "at least one node" in only_problem('name = "c"\n[[switch]]\nname = "s1"').expected
    with pytest.raises(DescriptionError, match="at least one node"):
        Description(name="c", nodes=[])


def test_a_file_of_10_mb_is_rejected_before_it_is_parsed(tmp_path: Path) -> None:
    file = tmp_path / "huge.toml"
    file.write_bytes(b'[[node]]\nname = "n"\n' * 500_000)
    start_time = time.process_time()
    with pytest.raises(DescriptionError, match="at most 4 MiB"):
        load(file)
    assert time.process_time() - start_time < 1, "the file was read or parsed completely"


def test_a_text_above_the_size_limit_is_rejected() -> None:
    assert "4 MiB" in only_problem("#" * (MAX_FILE_SIZE + 1)).expected


def test_a_directory_in_place_of_a_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="found a directory, expected a TOML file"):
        load(tmp_path)
    with pytest.raises(DescriptionError, match="found a directory"):
        load(f"{tmp_path}/")


def test_invalid_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin1.toml"
    file.write_bytes(b'name = "c"\n# caf\xe9\n')
    with pytest.raises(DescriptionError, match="line 2: found the byte 0xe9, expected text in UTF-8"):
        load(file)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    for source in (tmp_path / "nope.toml", f"{tmp_path}/nope", "nope.toml"):
        with pytest.raises(NotFoundError, match="there is no file"):
            load(source)


def test_an_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "secret.toml"
    file.write_text("")
    monkeypatch.setattr(Path, "open", deny)  # root may read all files
    with pytest.raises(PermissionDeniedError, match="cannot be read"):
        load(file)


def test_an_invalid_path_is_an_error() -> None:
    for source in ("/\0", "/" + "x" * 5000):
        with pytest.raises(DescriptionError):
            load(source)
    with pytest.raises(NotFoundError):
        load("x" * 5000)
    with pytest.raises(NotFoundError):
        load("")


def test_an_unknown_topology_gets_the_nearest_and_all_names() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'back-to-back'") as caught:
        load("back2back")
    assert "star-N" in str(caught.value)
    assert "emp-2001" in str(caught.value)


def test_a_star_without_nodes_is_rejected() -> None:
    with pytest.raises(DescriptionError, match="at least 1"):
        load("star-0")


def test_elements_constructed_in_python_report_all_their_errors() -> None:
    with pytest.raises(DescriptionError) as caught:
        Node(name="a b", memory="lots")
    assert [problem.path for problem in caught.value.problems] == ["name", "memory"]
    with pytest.raises(DescriptionError) as caught:
        Link(ends=["n1", "s1"], forward={"delay": "1", "rate": "fast"}, loss="x")
    assert [problem.path for problem in caught.value.problems] == ["loss", "forward.delay", "forward.rate"]
    with pytest.raises(DescriptionError, match="at least 68"):
        Nic(mtu=5)
    with pytest.raises(DescriptionError, match=r"unknown name 'swich', .*did you mean 'switch'"):
        Description(
            name="c", nodes=[Node(name="n1")], switches=[Switch(name="switch")], links=[Link(ends=["n1", "swich"])]
        )


def test_a_table_with_types_other_than_tomls_is_rejected() -> None:
    with pytest.raises(DescriptionError):
        from_dict({"name": object(), "node": {1: 2}, 3: 4}, "python")  # type: ignore[dict-item]


def parse_or_error(data: dict[str, object]) -> Description | DescriptionError:
    try:
        return from_dict(data, "any")
    except DescriptionError as error:
        return error


_KEYS = st.sampled_from(
    [
        "name",
        "node",
        "switch",
        "link",
        "generate",
        "defaults",
        "ends",
        "nic",
        "addresses",
        "mac",
        "mtu",
        "delay",
        "loss",
        "forward",
        "backward",
        "kind",
        "ports",
        "shape",
        "nodes",
        "cpus",
        "files",
        "environment",
        "network",
        "network6",
        "bottleneck",
        "jitter",
        "memory",
        "queue",
        "seed",
        "unknown",
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["n1", "s1", "n1:eth0", "10us", "1%", "10.0.0.1/8", "star", "0-3", "::1/64", "/x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=300)
@given(st.dictionaries(_KEYS, _VALUES, max_size=6))
def test_any_table_gives_a_description_or_its_errors(data: dict[str, object]) -> None:
    outcome = parse_or_error(data)
    if isinstance(outcome, DescriptionError):
        assert outcome.problems
        assert all(len(str(problem)) < 1000 for problem in outcome.problems)


_PART = st.fixed_dictionaries({}, optional={
    "node": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["n1", "n2", "n 3"])}, optional={
        "nic": st.lists(st.fixed_dictionaries({}, optional={
            "name": st.sampled_from(["eth0", "eth1", "ib0", "lo"]), "mtu": st.sampled_from([1500, 1000, 5]),
            "addresses": st.lists(st.sampled_from(["10.0.0.1/16", "10.1.0.1/24", "fd00::1/64", "x"]), max_size=2),
        }), max_size=2),
    }), max_size=3),
    "switch": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["s1", "s2", "n1"])}, optional={
        "ports": st.sampled_from([1, 2, 5000]), "kind": st.sampled_from(["ethernet", "atm", "x"]),
    }), max_size=3),
    "link": st.lists(st.fixed_dictionaries({
        "ends": st.lists(st.sampled_from(["n1", "n2", "s1", "s2", "s1:1", "n1:eth1", "x"]), min_size=1, max_size=2),
    }, optional={"jitter": st.just("1us"), "delay": st.sampled_from(["1us", 1]), "datapath": st.just("direct"),
        "kind": st.sampled_from(["ethernet", "atm", "x"])}),
        max_size=4),
    "network": st.sampled_from(["10.0.0.0/8", "10.0.0.0/30", "x"]),
    "network6": st.sampled_from(["fd00::/48", "fd00::/64", 7]),
    "defaults": st.sampled_from([{"mtu": 1000}, {"link": {"delay": "1ms"}}, {"link": {"jitter": 5}}]),
})  # fmt: skip


@settings(max_examples=300)
@given(_PART)
def test_every_accepted_cluster_can_be_resolved(data: dict[str, object]) -> None:
    outcome = parse_or_error({"name": "c", **data})
    if isinstance(outcome, Description):
        resolve(outcome)
