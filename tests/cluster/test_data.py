"""Samples as megatron-core's loaders deal them out: the frozen order, on any number of GPUs."""

import numpy as np
import pytest
import torch
from small import freeze, portable

from repro.cluster.data import FrozenOrder, ValidationShare, as_sample, sums_by_category
from repro.data.training_data import TrainingData, ValidationData


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return portable.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def segment(tmp_path):
    return freeze(tmp_path / "run")


@pytest.mark.parametrize(("replicas", "rows"), [(1, 2), (2, 2), (2, 1), (4, 1)])
def test_a_step_sees_the_frozen_samples_on_any_number_of_replicas(segment, data_dir, replicas, rows):
    """megatron-core's sequential sampler: replica r takes samples r m .. r m + m - 1 of each m R consecutive ones."""
    order = FrozenOrder(segment, data_dir)
    frozen = TrainingData(data_dir, segment.content["data"], segment.schedule)
    batch = segment.schedule["batch_sequences"]
    for step in (0, 11, 12, 19):  # both sides of the switch of phases, and the last step
        first, seen = step * batch, []
        for start in range(first, first + batch, rows * replicas):
            for replica in range(replicas):
                seen += [order[start + replica * rows + row] for row in range(rows)]
        expected = frozen.batch(first, batch)
        ours = np.stack([np.append(s["tokens"].numpy(), s["labels"][-1].item()) for s in seen])
        assert (ours == expected).all(), f"step {step}"


def test_a_sample_is_its_window_shifted_by_one():
    sample = as_sample(np.arange(9))
    assert sample["tokens"].tolist() == list(range(8))
    assert sample["labels"].tolist() == list(range(1, 9))
    assert sample["position_ids"].tolist() == list(range(8))
    assert sample["loss_mask"].tolist() == [1.0] * 8


def test_the_end_of_the_horizon_has_room_for_a_sampler_that_resumes_there(segment, data_dir):
    order = FrozenOrder(segment, data_dir)
    consumed = segment.end_step * segment.schedule["batch_sequences"]
    assert consumed < len(order)
    with pytest.raises(ValueError, match="samples"):
        order[consumed]


@pytest.mark.parametrize(("replicas", "rows"), [(1, 1), (1, 3), (2, 2), (3, 1), (16, 1)])
def test_validation_counts_every_sequence_once_on_any_number_of_replicas(segment, data_dir, replicas, rows):
    content = segment.content
    data = ValidationData(data_dir, content["data"], segment.schedule, content["validation"])
    expected = {}
    for name, tokens in data.batches(1):  # a "loss" that depends on the very tokens
        loss, count = expected.get(name, (0.0, 0))
        expected[name] = (loss + float(tokens[:, 1:].sum()), count + tokens.shape[1] - 1)
    shares = [
        ValidationShare.of(segment, data_dir, replica=replica, replicas=replicas, rows=rows)
        for replica in range(replicas)
    ]
    assert len({share.num_sequences for share in shares}) == 1, (
        "a replica with more rounds would wait for ever"
    )
    total = torch.zeros(len(shares[0].categories), 2, dtype=torch.float64)
    for share in shares:
        assert share.num_sequences % rows == 0
        for batch in share.batches(rows):
            assert batch["tokens"].shape[0] == rows
            total += sums_by_category(
                batch["labels"].float(), batch["loss_mask"], batch["categories"], len(total)
            )
    found = {
        name: (loss, count) for name, (loss, count) in zip(shares[0].categories, total.tolist(), strict=True)
    }
    assert found == expected
