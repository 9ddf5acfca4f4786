"""Samples as training and validation see them."""

import numpy as np
import pytest

from repro.data import TrainingData, ValidationData
from repro.data.indexed import IndexedTokens
from repro.data.training_data import share_out


def test_batches_do_not_depend_on_how_they_are_asked_for(prepared, run_sections):
    whole = TrainingData(prepared, *run_sections).batch(0, 400)
    assert whole.shape == (400, 65)
    assert whole.dtype == np.int64
    restarted = TrainingData(prepared, *run_sections)
    pieces = np.concatenate([restarted.batch(first, 4) for first in range(200, 400, 4)])
    assert np.array_equal(pieces, whole[200:])


def test_a_sample_is_contiguous_text_of_its_category(prepared, run_sections):
    data = TrainingData(prepared, *run_sections)
    batch = data.batch(0, 40)
    numbers, windows = data.order.locate(0, 40)
    for row, number, window in zip(batch, numbers, windows, strict=True):
        tokens = IndexedTokens(prepared / f"{data.order.categories[number]}_train").tokens
        assert np.array_equal(row, tokens[window * 64 : window * 64 + 65])


def test_phases_switch_exactly_at_their_token(prepared, run_sections):
    data = TrainingData(prepared, *run_sections)
    names = [data.order.categories[number] for number in data.order.locate(0, 400)[0]]
    assert run_sections[0]["phases"][0]["until_tokens"] == 280 * 64
    assert set(names[:280]) == {"crawl", "crawl_plus", "wiki", "math", "multilingual"}
    assert set(names[280:360]) == {"crawl", "math"}
    assert set(names[360:]) == {"wiki", "math"}


def test_asking_past_the_horizon_is_refused(prepared, run_sections):
    with pytest.raises(ValueError, match=r"samples 0\.\.399"):
        TrainingData(prepared, *run_sections).batch(398, 4)


def test_other_data_than_the_run_names_is_refused(prepared, run_sections):
    data, schedule = run_sections
    with pytest.raises(ValueError, match="holds the data 'small', but the run asks for 'proxy'"):
        TrainingData(prepared, data | {"name": "proxy"}, schedule)


def test_unprepared_category_is_named(prepared, run_sections):
    data, schedule = run_sections
    phases = [{"until_tokens": 6400, "blend": {"code": 1.0}}]
    with pytest.raises(ValueError, match="category 'code'; prepared are crawl, crawl_plus"):
        TrainingData(prepared, data | {"phases": phases}, schedule)


def test_phase_inside_a_sample_is_refused(prepared, run_sections):
    data, schedule = run_sections
    with pytest.raises(ValueError, match="100 is no multiple of the sequence length 64"):
        TrainingData(prepared, data | {"phases": [{"until_tokens": 100, "blend": {"crawl": 1.0}}]}, schedule)


def test_validation_set_is_fixed_and_counted_by_category(prepared, run_sections):
    data = ValidationData(prepared, *run_sections, {"sequences": 20})
    batches = list(data.batches(3))
    assert sum(len(batch) for _, batch in batches) == 20
    assert {category for category, _ in batches} == set(data.num_sequences)
    by_rows = [(c, row.tolist()) for c, batch in batches for row in batch]
    assert by_rows == [(c, row.tolist()) for c, batch in data.batches(20) for row in batch]


def test_validation_set_does_not_depend_on_the_horizon(prepared, run_sections, small_spec):
    data, schedule = run_sections
    longer = small_spec.phases_of_run("three_phase", horizon_tokens=153 * 256, tokens_per_step=256)
    a, b = (
        [batch.tolist() for _, batch in ValidationData(prepared, d, schedule, {"sequences": 20}).batches(4)]
        for d in (data, data | {"phases": longer})
    )
    assert a == b


def test_validation_set_has_the_shares_of_the_first_phase(prepared, run_sections):
    data = ValidationData(prepared, *run_sections, {"sequences": 20})
    blends = [phase["blend"] for phase in run_sections[0]["phases"]]
    assert data.num_sequences == share_out(20, blends[0])
    assert data.num_sequences.keys() != blends[-1].keys()


def test_more_validation_than_there_is_names_the_file(prepared, run_sections):
    with pytest.raises(ValueError, match=r"_validation\.bin: \d+ validation sequences of 64 tokens wanted"):
        ValidationData(prepared, *run_sections, {"sequences": 10**6})


@pytest.mark.parametrize("total", [3, 10, 37, 1000])
def test_share_out_sums_up_and_leaves_nobody_out(total):
    counts = share_out(total, {"a": 70.0, "b": 29.5, "c": 0.5})
    assert sum(counts.values()) == total
    assert min(counts.values()) >= 1


def test_share_out_gives_what_is_left_to_the_largest_remainder():
    # One each; of the other seven 4.9, 2.065 and 0.035
    assert share_out(10, {"a": 70.0, "b": 29.5, "c": 0.5}) == {"a": 6, "b": 3, "c": 1}


def test_share_out_needs_one_for_each():
    with pytest.raises(ValueError, match="2 is fewer than the 3 categories"):
        share_out(2, {"a": 1, "b": 1, "c": 1})
