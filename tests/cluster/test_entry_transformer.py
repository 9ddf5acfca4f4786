"""The 1.2B model's kind through the entry point: attention and feed-forward blocks with RoPE, no Mamba layer.

Needs what test_entry_point.py needs, and runs like it.
"""

import importlib.util
import sys

import pytest
from entry_point import TRANSFORMER, done, logit_difference, note, records, segment_of, train
from launched import ON_GPU
from small import portable

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12)
    or any(importlib.util.find_spec(name) is None for name in ("transformer_engine", "mamba_ssm")),
    reason="needs megatron-core 0.19, transformer-engine and mamba-ssm",
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return portable.write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_a_small_transformer_trains_and_its_checkpoint_converts_with_equal_logits(tmp_path, data_dir, recipe):
    segment = segment_of(tmp_path / "run", recipe=recipe, family="1p2b", model=TRANSFORMER)
    code, said = train(segment, data_dir)
    assert code == 0, said[-6000:]
    losses, record = [line["loss"] for line in records(segment)], done(segment)
    assert losses[-1] < losses[0] - 0.3, losses
    formats = {block: set() for block in range(3)}
    for line in record["precision"]:
        formats[line["block"]].add(line["format"])
    assert formats == {0: {recipe}, 1: {recipe}, 2: {"bf16"}}, "a block is two of megatron-core's layers"
    assert record["num_parameters"] == segment.model.num_parameters()
    difference, spread = logit_difference(segment, tmp_path)
    note(
        "a transformer trains and converts", recipe=recipe, losses=losses, largest_logit_difference=difference
    )
    # The bounds of test_entry_point.py.
    assert difference < (2**-6 if ON_GPU else 1e-3) * spread
