"""Hash of fates, which other implementations reproduce: test vectors, published outputs of SplitMix64, and quality."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.fates import fate_hash
from testbed.fates.fate_hash import MASK
from testbed.fates.field_changes import choose_bits
from testbed.fates.loss_models import GilbertElliott
from tests.unit.fates.statistical_checks import check_share

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
WORDS = st.integers(0, MASK)


def word(text: str) -> int:
    return int(text, 16)


def mix64(number: int) -> int:
    return fate_hash.draw(number, 0)


def test_the_hash_matches_its_test_vectors() -> None:
    for row in VECTORS["mix64"]:
        assert mix64(word(row["word"])) == word(row["result"])
    for row in VECTORS["absorb"]:
        assert fate_hash.absorb(word(row["state"]), word(row["word"])) == word(row["result"])
    for row in VECTORS["direction_key"]:
        assert fate_hash.direction_key(word(row["seed"]), row["link"], row["direction"]) == word(row["result"])
    for row in VECTORS["flow_key"]:
        ends = [word(row[key]) for key in ("direction_key", "ethertype", "destination", "source")]
        assert fate_hash.flow_key(*ends, tuple(word(field) for field in row["fields"])) == word(row["result"])
    for row in VECTORS["draw"]:
        assert getattr(fate_hash, row["name"]) == row["stream"]
        assert fate_hash.absorb(word(row["flow_key"]), row["stream"]) == word(row["start"])
        for draw in row["draws"]:
            assert fate_hash.draw(word(row["start"]), draw["n"]) == word(draw["result"])
    for row in VECTORS["threshold"]:
        assert fate_hash.threshold(row["probability"]) == word(row["result"])
    for row in VECTORS["below"]:
        assert fate_hash.below(word(row["word"]), row["bound"]) == row["result"]
    for row in VECTORS["lost"]:
        start, limit = fate_hash.absorb(word(row["flow_key"]), fate_hash.LOSS), fate_hash.threshold(row["probability"])
        numbers = range(1, row["first"] + 1)
        assert [n for n in numbers if fate_hash.draw(start, n) >> 11 < limit] == row["lost"]
    for row in VECTORS["gilbert_elliott"]:
        model = GilbertElliott(tuple(row["parameters"]), word(row["direction_key"]))
        assert [n for n in range(1, row["first"] + 1) if model.step(n)] == row["lost"]


def test_a_stream_matches_published_outputs_of_splitmix64() -> None:
    # The first five from the seed 1234567, as Rosetta Code lists them for SplitMix64.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [fate_hash.draw(1234567, n) for n in range(1, 6)] == published


@given(st.floats(0, 1))
def test_a_threshold_is_the_probability_exactly(probability: float) -> None:
    limit = fate_hash.threshold(probability)
    assert limit - 1 < probability * 2**53 <= limit
    assert (limit > 0) == (probability > 0)
    assert 0 <= limit <= fate_hash.CERTAIN


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_only_probabilities_have_thresholds(probability: float) -> None:
    with pytest.raises(ValueError, match="probability must be 0 to 1"):
        fate_hash.threshold(probability)


@given(WORDS, WORDS, WORDS)
def test_all_states_are_words_of_64_bits(state: int, value: int, n: int) -> None:
    assert 0 <= fate_hash.absorb(state, value) <= MASK
    assert 0 <= fate_hash.draw(state, n) <= MASK
    assert 0 <= fate_hash.below(value, 1500 * 8) < 1500 * 8


def test_one_input_bit_changes_half_of_the_output_bits() -> None:
    flipped = sum(
        (mix64(number) ^ mix64(number ^ 1 << bit)).bit_count() for number in range(1, 101) for bit in range(64)
    )
    check_share(flipped, 100 * 64 * 64, 0.5, "output bits changed by one input bit")


def test_streams_and_neighbouring_flows_are_independent() -> None:
    limit, samples = fate_hash.threshold(0.1), 20_000
    keys = [fate_hash.flow_key(7, 0x0800, 1, 2, (6, port)) for port in (5000, 5001)]
    starts = [fate_hash.absorb(keys[0], stream) for stream in range(1, 9)]
    starts += [fate_hash.absorb(keys[1], stream) for stream in (1, 2)]
    hits = [[fate_hash.draw(start, n) >> 11 < limit for n in range(1, samples + 1)] for start in starts]
    coincidences = 0
    pairs = [(hit, second) for index, hit in enumerate(hits) for second in hits[:index]]
    for first, second in pairs:
        coincidences += sum(a and b for a, b in zip(first, second, strict=True))
    check_share(coincidences, samples * len(pairs), 0.01, "two draws of 10 % together")
    successive = sum(a and b for hit in hits for a, b in itertools.pairwise(hit))
    check_share(successive, (samples - 1) * len(hits), 0.01, "a draw of 10 % twice in a row")


@settings(max_examples=50)
@given(WORDS, st.integers(1, 10**6), st.integers(0, 40), st.integers(0, 10))
def test_flipped_bits_match_the_configured_number_and_stay_within_the_frame(
    start: int, n: int, flips: int, size: int
) -> None:
    positions = choose_bits(start, n, flips, size)
    assert len(set(positions)) == len(positions) == min(flips, size * 8)
    assert all(0 <= position < size * 8 for position in positions)
