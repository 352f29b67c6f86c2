"""Profiles by name and by file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.core.profile import IDEAL, PROCESSOR_COSTS, Cost, Profile
from protocols.emp.profile import EMP_2001, EMP_2002
from protocols.emp.protocol import PROTOCOL
from testbed.controller.runs.profiles import profile_of, profile_values
from testbed.errors import DescriptionError, NotFoundError


def test_a_profile_is_selected_by_name_and_an_unknown_name_lists_the_valid_ones() -> None:
    assert profile_of("ideal", PROTOCOL) is IDEAL
    assert profile_of("emp-2001", PROTOCOL) is EMP_2001
    with pytest.raises(NotFoundError, match=r"did you mean 'emp-2002'.* ideal, emp-2001, emp-2002, or a TOML file"):
        profile_of("emp-202", PROTOCOL)


def test_a_file_lists_the_differences_from_another_profile(tmp_path: Path) -> None:
    file = tmp_path / "faster.toml"
    file.write_text('like = "emp-2001"\nreceive = "2us"\nbus_rate = "8gbit"\nbus_burst = "1KiB"\nprocessors = 2\n')
    profile = profile_of(file, PROTOCOL)
    assert (profile.name, profile.receive, profile.bus_rate, profile.bus_burst, profile.processors) == (
        "faster", 2_000, 8 * 10**9, 1024, 2,
    )  # fmt: skip
    assert profile.stored == EMP_2001.stored
    file.write_text('name = "wire only"\npages_apart = true\n')
    assert profile_of(str(file), PROTOCOL) == Profile("wire only", pages_apart=True)
    assert profile_of(file, PROTOCOL).is_zero_cost


def test_all_errors_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('like = "emp"\nreceve = "2us"\nbus_rate = "2us"\nring = "fast"\npages_apart = 1\nahead = "two"\n')
    with pytest.raises(DescriptionError) as caught:
        profile_of(file, PROTOCOL)
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == 6
    assert any("unknown key 'receve'" in message and "did you mean 'receive'" in message for message in messages)
    assert any(message.startswith("bus_rate: ") and "a rate" in message for message in messages)
    assert any(message.startswith("ahead: ") and "a whole number" in message for message in messages)
    file.write_text("processors = 3\n")
    with pytest.raises(DescriptionError, match="processors must be 1 or 2, got 3"):
        profile_of(file, PROTOCOL)
    file.write_text("receive = -3\n")
    with pytest.raises(DescriptionError, match="receive"):
        profile_of(file, PROTOCOL)
    with pytest.raises(NotFoundError, match="no file"):
        profile_of(tmp_path / "nowhere.toml", PROTOCOL)


def test_profiles_whose_like_keys_form_a_cycle_are_rejected(tmp_path: Path) -> None:
    first_file, second_file = tmp_path / "one.toml", tmp_path / "other.toml"
    first_file.write_text(f'like = "{second_file}"\n')
    second_file.write_text(f'like = "{first_file}"\n')
    with pytest.raises(DescriptionError, match=r"one\.toml refers to itself by 'like'"):
        profile_of(first_file, PROTOCOL)


def test_a_file_sets_costs_of_work_on_host_cores_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "kernel.toml"
    file.write_text('hosted = true\n[work.trap]\nfixed = "300ns"\n[work.copy]\nrate = "2gbit"\nsame_rate = "4gbit"\n')
    profile = profile_of(file, PROTOCOL)
    assert profile.hosted
    assert profile.work == {"trap": Cost(300), "copy": Cost(0, 2 * 10**9, 4 * 10**9)}
    assert not profile.is_zero_cost
    assert profile_of(json.loads(json.dumps(profile_values(profile))), PROTOCOL) == profile


def test_kinds_of_work_are_added_to_those_of_the_base_profile(tmp_path: Path) -> None:
    base, file = tmp_path / "base.toml", tmp_path / "own.toml"
    base.write_text('[work.trap]\nfixed = "300ns"\n[work.wake]\nfixed = "2us"\n')
    file.write_text(f'like = "{base}"\n[work.trap]\nfixed = "1us"\n')
    assert profile_of(file, PROTOCOL).work == {"trap": Cost(1_000), "wake": Cost(2_000)}


def test_work_of_an_unknown_kind_or_an_unknown_cost_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[work]\ntrap = 3\n[work.tarp]\nfixed = "1us"\n[work.copy]\nspeed = "1gbit"\nrate = "fast"\n')
    with pytest.raises(DescriptionError) as caught:
        profile_of(file, PROTOCOL)
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == 4
    assert any("'tarp'" in message and "did you mean 'trap'" in message for message in messages)
    assert any("'speed'" in message for message in messages)
    assert any(message.startswith("work.copy.rate: ") and "a rate" in message for message in messages)
    assert any(message.startswith("work.trap: ") and "a table" in message for message in messages)


@pytest.mark.parametrize("profile", [IDEAL, EMP_2001, EMP_2002], ids=lambda profile: profile.name)
def test_a_profile_survives_a_round_trip_through_its_values(profile: Profile) -> None:
    assert profile_of(profile_values(profile), PROTOCOL) == profile


def test_a_slower_processor_multiplies_its_own_costs_only() -> None:
    slowed = EMP_2001.slowed(3)
    for key in Profile.__slots__:
        factor = 3 if key in PROCESSOR_COSTS else 1
        value = getattr(EMP_2001, key)
        assert getattr(slowed, key) == (factor * value if isinstance(value, int) else value)
