"""Random sources: stable for a seed and a name (test vectors), independent of each other, and uniform."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.engine.sources import Source, source
from testbed.fates.fate_hash import GOLDEN, MASK, direction_key, draw

# Published with SplitMix64 (Vigna's splitmix64.c): the first outputs from state 1234567.
SPLITMIX64 = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)

# Drawn in this order by `test_vectors` from the source of seed 42 and name n1.
WORDS = [12284737199114462247, 14122549860513468320, 17987925566104125221]
RANDOM = 0.38355529192426385
DICE_ROLLS = [0, 4, 2, 3, 0, 5, 4, 3]
UNIFORM = 18.470094448810187
EXPONENTIAL = 1335.8963052870645
SAMPLE = "fbdh"
SHUFFLED = "dhgfebac"
WORD_OF_LONG_NAME = 9238610404657117961


def test_the_outputs_are_those_of_splitmix64() -> None:
    stream = Source(1234567)
    assert tuple(stream.word() for _ in SPLITMIX64) == SPLITMIX64


def test_the_outputs_equal_the_draws_of_fates() -> None:
    stream = Source(99)
    assert [stream.word() for _ in range(5)] == [draw(99, n) for n in range(1, 6)]


@given(seed=st.integers(0, 2**64 - 1), name=st.text(max_size=20))
def test_a_source_depends_only_on_seed_and_name(seed: int, name: str) -> None:
    first = source(seed, name)
    other_source = source(seed, name + "'")
    first_words = [first.word() for _ in range(3)]
    for _ in range(5):
        other_source.word()
    same_source = source(seed, name)
    assert [same_source.word() for _ in range(3)] == first_words
    assert source(seed ^ 1, name).word() != first_words[0]
    assert source(seed, name + "'").word() != first_words[0]


def test_draws_of_a_component_differ_from_the_fates_of_a_link_with_its_name() -> None:
    keys = {direction_key(7, "n1-n2", direction) for direction in ("forward", "backward")}
    assert source(7, "n1-n2").word() not in {draw(key, 1) for key in keys}


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be 0 to"):
        source(seed, "n1")


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**64))
def test_a_bounded_number_is_below_its_bound(start: int, bound: int) -> None:
    assert 0 <= Source(start).below(bound) < bound


@pytest.mark.parametrize("bound", [0, -1, 2**64 + 1])
def test_a_bound_below_1_is_rejected(bound: int) -> None:
    with pytest.raises(ValueError, match="bound must be 1 to"):
        Source(1).below(bound)


def test_biased_draws_are_redrawn() -> None:
    """All but one of the 2^64 words divide evenly among 2^64 - 1 numbers; the remaining word is 0."""
    before_zero = Source(-GOLDEN & MASK)  # mix64(0) is 0
    stream = Source(-GOLDEN & MASK)
    assert stream.word() == 0
    assert before_zero.below(2**64 - 1) == (stream.word() * (2**64 - 1)) >> 64


def test_numbers_below_a_bound_are_uniformly_distributed() -> None:
    """Chi-squared with 9 degrees of freedom exceeds 47.5 once in 3e6. With 20,000 draws, a value that is 20 % too frequent
    adds 80 to the statistic."""
    stream, draws, values = source(1, "dice"), 20_000, 10
    counts = [0] * values
    for _ in range(draws):
        counts[stream.below(values)] += 1
    expected = draws / values
    assert sum((count - expected) ** 2 / expected for count in counts) < 47.5


def test_the_means_of_uniform_and_exponential_draws_are_as_configured() -> None:
    """A mean of n draws is outside of 4.9 standard errors once in 1e6."""
    stream, n = source(2, "arrivals"), 20_000
    uniform = [stream.uniform(-3.0, 5.0) for _ in range(n)]
    assert abs(sum(uniform) / n - 1.0) < 4.9 * 8 / math.sqrt(12 * n)
    assert -3.0 <= min(uniform) <= max(uniform) < 5.0
    exponential = [stream.exponential(250.0) for _ in range(n)]
    assert abs(sum(exponential) / n - 250.0) < 4.9 * 250.0 / math.sqrt(n)
    assert min(exponential) >= 0.0


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(), max_size=30))
def test_shuffling_permutes_and_a_sample_is_a_subset(start: int, items: list[int]) -> None:
    stream = Source(start)
    shuffled = list(items)
    stream.shuffle(shuffled)
    assert sorted(shuffled) == sorted(items)
    positions = stream.sample(range(len(items)), len(items) // 2)
    assert len(set(positions)) == len(positions) == len(items) // 2
    if items:
        assert stream.choice(items) in items


def test_shuffled_orders_are_uniformly_distributed() -> None:
    """Chi-squared with 5 degrees of freedom exceeds 37.0 once in 1.7e6."""
    stream, draws = source(3, "cards"), 6_000
    counts: dict[tuple[str, ...], int] = {}
    for _ in range(draws):
        cards = list("abc")
        stream.shuffle(cards)
        counts[tuple(cards)] = counts.get(tuple(cards), 0) + 1
    assert len(counts) == 6
    assert sum((count - draws / 6) ** 2 / (draws / 6) for count in counts.values()) < 37.0


def test_an_empty_choice_cannot_be_drawn_from() -> None:
    with pytest.raises(ValueError, match="bound must be 1 to"):
        Source(1).choice([])
    with pytest.raises(ValueError, match="count must be 0 to 2, the number of items, got 3"):
        Source(1).sample([1, 2], 3)


def test_vectors() -> None:
    """The output of the generator is stable, so that old runs can be repeated."""
    stream = source(42, "n1")
    assert [stream.word() for _ in range(3)] == WORDS
    assert stream.random() == RANDOM
    assert [stream.below(6) for _ in range(8)] == DICE_ROLLS
    assert stream.uniform(10.0, 20.0) == UNIFORM
    assert stream.exponential(1000.0) == pytest.approx(EXPONENTIAL, rel=1e-14)
    assert stream.sample("abcdefgh", 4) == list(SAMPLE)
    letters = list("abcdefgh")
    stream.shuffle(letters)
    assert "".join(letters) == SHUFFLED
    assert source(2**64 - 1, "Übertragung, mehr als acht Bytes").word() == WORD_OF_LONG_NAME
