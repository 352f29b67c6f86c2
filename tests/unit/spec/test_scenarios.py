"""Scenarios in TOML and Python: accepted forms, and reports of all errors."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from testbed import Scenario
from testbed.errors import DescriptionError, NotFoundError
from testbed.spec import scenario as scenarios
from testbed.spec.fault_models import KINDS, Crash, Flap, Impair, Partition, Pause, Reset, Restart
from testbed.spec.loader import table_of
from testbed.spec.problems import MismatchError
from testbed.spec.scenario import RandomFaults

MILLISECOND, SECOND = 1_000_000, 1_000_000_000

STORM = """
name = "storm"
[[fault]]
kind = "impair"
on = "n1"
direction = "out"
from = "2s"
to = "4s"
loss = "5%"
delay = "2ms"
rate = "100mbit"
[[fault]]
kind = "rule"
rules = "drop emp.type == 3 and nth(3)"
at = "1s"
[[fault]]
kind = "flap"
on = ["n1", "n2"]
at = "1s"
for = "100ms"
every = "1s"
[[fault]]
kind = "partition"
groups = [["n1", "n2"], ["n3"]]
at = "1s"
[[fault]]
kind = "partition"
shape = "isolated"
node = "n2"
one_way = true
at = "1s"
for = "1s"
[[fault]]
kind = "cpu"
on = "n1"
share = "150%"
at = 0
[[fault]]
kind = "traffic"
senders = ["n1"]
receiver = "n2"
rate = "10mbit"
at = "1s"
[[fault]]
kind = "churn"
mean = "1s"
away = "100ms"
from = "1s"
[random]
kinds = ["impair", "pause"]
rate = 2
seed = 7
longest = "200ms"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        Scenario.from_toml(text)
    return [str(problem) for problem in caught.value.problems]


def fault(**lines: str) -> str:
    return "[[fault]]\n" + "".join(f"{key.rstrip('_')} = {value}\n" for key, value in lines.items())


def test_toml_and_python_give_equal_elements() -> None:
    from_toml = Scenario.from_toml(
        fault(kind='"impair"', on='"n1"', from_='"2s"', to='"4s"', loss='"5%"')
        + fault(kind='"flap"', on='["n1", "n2"]', at='"1s"', for_='"100ms"')
    )
    assert from_toml == Scenario(
        faults=[Impair(on="n1", from_="2s", to="4s", loss="5%"), Flap(on=["n1", "n2"], at="1s", for_="100ms")]
    )


def test_a_scenario_survives_writing_and_reading() -> None:
    storm = Scenario.from_toml(STORM)
    assert Scenario.from_toml(storm.to_toml()) == storm
    assert storm.name == "storm"


def test_a_file_determines_the_scenarios_name_and_base_directory(tmp_path: Path) -> None:
    path = tmp_path / "mobile.toml"
    path.write_text(fault(kind='"impair"', on='"n1"', at='"1s"', rate_trace='"lte.trace"'))
    scenario = Scenario.load(path)
    assert scenario.name == "mobile"
    assert isinstance(scenario.faults[0], Impair)
    assert scenario.faults[0].rate_trace == str(tmp_path / "lte.trace")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        Scenario.load(tmp_path / "nowhere.toml")


def test_all_errors_are_reported_at_once_with_the_nearest_name() -> None:
    messages = problems(
        fault(kind='"impair"', on='"n1"', at='"2s"', dealy='"1ms"', loss='"5%"')
        + fault(kind='"flapp"', at='"1s"')
        + fault(kind='"pause"', on='"n1"', at="3", for_='"1s"')
        + fault(on='"n1"')
        + fault(kind='"crash"', at='"1s"')
        + "[random]\nkinds = ['flop']\nrate = 0\n"
    )
    assert messages[0].startswith("fault[1]: found unknown key 'dealy'")
    assert messages[0].endswith("did you mean 'delay'?")
    assert messages[1].startswith("fault[2].kind: found 'flapp'")
    assert messages[1].endswith("did you mean 'flap'?")
    assert messages[2].startswith("fault[3].at: found 3, expected a duration")
    assert messages[3].startswith("fault[4]: expected the key 'kind'")
    assert messages[4] == "fault[5]: expected the key 'on'"
    assert [line.partition(":")[0] for line in messages[5:]] == ["random.kinds[1]", "random.rate"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fault(kind='"crash"', on='"n1"'), "fault[1]: expected the key 'at' or 'from': the beginning of the fault"),
        (
            fault(kind='"crash"', on='"n1"', at='"1s"', from_='"1s"'),
            "fault[1].from: found 'from' together with 'at', expected",
        ),
        (fault(kind='"crash"', on='"n1"', at='"2s"', to='"1s"'), "fault[1].to: found 1s, expected a time after 2s"),
        (fault(kind='"pause"', on='"n1"', at='"1s"'), "fault[1]: expected the key 'for' or 'to': pause has an end"),
        (
            fault(kind='"down"', on='"n1"', at='"1s"', to='"2s"', for_='"1s"'),
            "fault[1].for: found 'for' together with 'to'",
        ),
        (
            fault(kind='"flap"', on='"n1"', at='"1s"', every='"1s"'),
            "fault[1]: expected the key 'for' as well as 'every'",
        ),
        (
            fault(kind='"flap"', on='"n1"', at='"1s"', every='"1s"', for_='"2s"'),
            "fault[1].for: found 2s, expected not longer than 'every'",
        ),
        (fault(kind='"reset"', on='"n1"', at='"1s"', for_='"2s"'), "fault[1].for: found 2s, expected no such key"),
        (fault(kind='"flap"', on='"n1"', at='"1s"', for_='"0s"'), "fault[1].for: found '0s', expected more than 0"),
        (fault(kind='"impair"', on='"n1"', at='"1s"'), "fault[1]: expected an impairment: one of the keys delay"),
        (fault(kind='"partition"', at='"1s"'), "fault[1]: expected either 'groups' or 'shape'"),
        (fault(kind='"partition"', at='"1s"', groups='[["n1"]]'), "fault[1].groups: found 1, expected two groups"),
        (
            fault(kind='"partition"', at='"1s"', groups='[["n1"], ["n1", "n2"]]'),
            "fault[1].groups: found n1 twice, expected every node in one group",
        ),
        (fault(kind='"cpu"', on='"n1"', at='"1s"', share='"0%"'), "fault[1].share: found '0%', expected a share"),
        (fault(kind='"incast"', receiver='"n1"', at='"1s"', rate="0"), "fault[1].rate: found 0, expected more than 0"),
        ("fault = 3", "fault: found 3, expected tables that begin with [[fault]]"),
        ("", "found nothing, expected a fault ([[fault]]) or faults at random ([random])"),
        ("faults = []", "found unknown key 'faults', expected one of the keys name, fault or random — did you mean"),
        ("[random]\nkinds = []\nrate = 1", "random.kinds: found none, expected one kind or more"),
        ("[random]\nkinds = ['pause']\nrate = 1\nlongest = '1ms'", "random.longest: found 1ms, expected at least 10ms"),
    ],
)
def test_invalid_faults_are_reported_with_their_path(text: str, expected: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(expected)


def test_errors_in_python_descriptions_are_reported() -> None:
    with pytest.raises(DescriptionError, match=r"fault\[1\]: expected the key 'for' or 'to': pause has an end"):
        Scenario(faults=[Pause(on="n1", at="1s")])
    with pytest.raises(DescriptionError, match="expected a duration"):
        Crash(on="n1", at="soon")


def test_a_toml_syntax_error_is_reported_with_its_line() -> None:
    with pytest.raises(DescriptionError, match="line 2"):
        Scenario.from_toml("[[fault]]\nkind = \n")


def test_the_times_of_a_fault_follow_from_its_keys() -> None:
    one_hour = 3600 * SECOND
    assert Crash(on="n1", at="2s").times(one_hour) == [(2 * SECOND, None)]
    assert Crash(on="n1", from_="2s", to="3s").times(one_hour) == [(2 * SECOND, 3 * SECOND)]
    assert Restart(on="n1", at="2s").times(one_hour) == [(2 * SECOND, 2 * SECOND)]
    assert Reset(on="n1", at="1s", every="1s", to="3s").times(one_hour) == [(SECOND, SECOND), (2 * SECOND, 2 * SECOND)]
    flap = Flap(on="n1", at="1s", every="1s", for_="100ms")
    assert flap.times(3 * SECOND) == [
        (SECOND, SECOND + 100 * MILLISECOND),
        (2 * SECOND, 2 * SECOND + 100 * MILLISECOND),
    ]
    with pytest.raises(MismatchError, match="1,000,000 occurrences, and 100,000 are allowed"):
        Flap(on="n1", at=0, every="1us", for_="1us").times(SECOND)


def test_the_schema_accepts_correct_files_and_rejects_others() -> None:
    schema = scenarios.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(table_of(STORM, "storm"))
    for text in (fault(kind='"flapp"', at='"1s"'), fault(kind='"crash"', on='"n1"', at="3"), "faults = []"):
        assert not validator.is_valid(table_of(text, "invalid"))


def test_every_kind_of_fault_has_a_summary() -> None:
    storm = Scenario.from_toml(STORM)
    assert storm.faults[0].what == "delay 2ms, rate 100mbit, loss 5% on n1 (out)"
    assert [fault.what for fault in storm.faults[2:5]] == [
        "down: n1, n2",
        "partition n1,n2 / n3",
        "partition isolated of n2, one way",
    ]
    assert all("what" in vars(kind) or "what" in vars(kind.__mro__[1]) for kind in KINDS.values())


def test_random_faults_have_defaults() -> None:
    random_faults = RandomFaults(kinds=["pause"], rate=2)
    assert (random_faults.shortest, random_faults.longest, random_faults.seed) == (10 * MILLISECOND, SECOND, None)


def test_the_summary_of_a_partition_names_its_shape() -> None:
    assert Partition(shape="halves", at=0).what == "partition halves"
