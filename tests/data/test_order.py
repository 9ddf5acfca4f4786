"""The order of samples: fixed by (seed, index), shares exact, phases on time, nothing twice before all was seen."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data.order import PhaseBlend, SampleOrder, edges_of, permutation, splitmix64

PHASES = [
    PhaseBlend(700, {"a": 0.6, "b": 0.3, "c": 0.1}),
    PhaseBlend(900, {"a": 0.25, "c": 0.75}),
    PhaseBlend(1000, {"b": 1.0}),
]
WINDOWS = {"a": 5000, "b": 5000, "c": 90}


def categories_of(order: SampleOrder, first: int, last: int) -> list[str]:
    return [order.categories[number] for number in order.locate(first, last - first)[0]]


def test_splitmix64_is_the_published_generator():
    # First outputs of splitmix64 seeded with 1234567, as Rosetta Code and Java's SplittableRandom give them.
    seeds = np.uint64(1234567) + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(seeds).tolist() == expected


def test_order_never_changes_silently():
    numbers, windows = SampleOrder(PHASES, WINDOWS, seed=3).locate(0, 1000)
    digest = hashlib.sha256(numbers.astype("<i1").tobytes() + windows.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "50c59e34b06993e1", (
        "the order of samples differs from the recorded one: every run would change"
    )


def test_restart_in_the_middle_sees_the_same_samples():
    whole = SampleOrder(PHASES, WINDOWS, seed=3).locate(0, 1000)
    restarted = SampleOrder(PHASES, WINDOWS, seed=3)
    for first in (996, 4, 699, 512):  # also backwards: position is an argument, not a state
        numbers, windows = restarted.locate(first, 4)
        assert numbers.tolist() == whole[0][first : first + 4].tolist()
        assert windows.tolist() == whole[1][first : first + 4].tolist()


def test_other_seed_gives_another_order():
    a, b = (SampleOrder(PHASES, WINDOWS, seed=seed).locate(0, 1000)[1] for seed in (3, 4))
    assert (a != b).mean() > 0.9


def test_phase_switches_exactly_at_its_sample():
    order = SampleOrder(PHASES, WINDOWS, seed=3)
    assert "b" in categories_of(order, 690, 700)
    assert set(categories_of(order, 700, 900)) == {"a", "c"}, "phase 2 has no b"
    assert set(categories_of(order, 900, 1000)) == {"b"}, "phase 3 has b alone"


def test_every_stretch_has_the_blend_to_within_two_samples():
    order = SampleOrder(PHASES, WINDOWS, seed=3)
    for first, last, weights in (
        (0, 700, PHASES[0].weights),
        (0, 40, PHASES[0].weights),
        (700, 900, PHASES[1].weights),
    ):
        counts = Counter(categories_of(order, first, last))
        for category, weight in weights.items():
            expected = weight * (last - first)
            assert abs(counts[category] - expected) <= 2, f"{category} in {first}..{last}: {counts[category]}"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**63), st.integers(1, 400))
def test_no_window_repeats_before_all_were_seen(num_windows, seed, num_samples):
    phases = [
        PhaseBlend(max(1, num_samples // 2), {"a": 0.5, "b": 0.5}),
        PhaseBlend(num_samples + 1, {"a": 1.0}),
    ]
    order = SampleOrder(phases, {"a": num_windows, "b": 3}, seed=seed)
    numbers, windows = order.locate(0, order.num_samples)
    seen = windows[numbers == order.categories.index("a")]
    for first in range(0, len(seen), num_windows):
        epoch = seen[first : first + num_windows]
        assert len(set(epoch.tolist())) == len(epoch), f"a window of the epoch at draw {first} came twice"


def test_passes_over_a_category_have_different_orders():
    _, windows = SampleOrder([PhaseBlend(180, {"c": 1.0})], {"c": 90}, seed=1).locate(0, 180)
    assert sorted(windows[:90]) == sorted(windows[90:]) == list(range(90))
    assert windows[:90].tolist() != windows[90:].tolist()


def test_permutation_covers_and_depends_on_every_part_of_its_key():
    orders = [permutation(50, *key).tolist() for key in (("a", 1), ("a", 2), ("b", 1), ("a", "1"))]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_category_without_text_is_named():
    with pytest.raises(ValueError, match="category 'c'"):
        SampleOrder(PHASES, {"a": 10, "b": 10, "c": 0}, seed=0)


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (999, 2), (1000, 1)])
def test_samples_outside_the_run_are_refused(first, count):
    with pytest.raises(ValueError, match=r"samples 0\.\.999"):
        SampleOrder(PHASES, WINDOWS, seed=0).locate(first, count)


def test_the_last_edge_is_two_to_the_53_for_every_blend():
    """A sample whose u lies above it would find no category. Ten times 0.1 once added to less than its own sum."""
    generator = np.random.default_rng(1)
    blends = [np.full(10, 0.1), *(generator.random(size) for size in range(1, 40) for _ in range(20))]
    for weights in blends:
        categories = [str(number) for number in range(len(weights) + 1)]  # the last has no weight
        phase = PhaseBlend(1, dict(zip(categories, weights.tolist(), strict=False)))
        edges = edges_of(phase, categories)
        assert edges[-1] == edges[-2] == 2**53, weights
