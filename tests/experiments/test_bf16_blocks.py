"""Blocks in BF16 and the model's number of blocks: what cannot be trained is told when a run is planned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repro.experiments import load

CONFIGS = Path(__file__).parents[2] / "configs"
OWN = """
title: own
source: own
family: 1p2b
runs:
  1p2b_own: {{parent: {parent}, {wanted}}}
"""


def planned(folder: Path, wanted: str, parent: str = "1p2b_last4") -> object:
    shutil.copytree(CONFIGS, folder / "configs")
    text = OWN.format(parent=parent, wanted=wanted)
    (folder / "configs" / "experiments" / "own.yaml").write_text(text, encoding="utf-8")
    return load("tiny", configs_dir=folder / "configs").run("1p2b_own")


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (r"changes\.bf16_blocks", "changes: {{bf16_blocks: {{first: {}, last: {}}}}}"),
        (r"changes\.bf16_blocks\.last", "changes: {{bf16_blocks.first: {}, bf16_blocks.last: {}}}"),
        ("bf16_blocks", "bf16_blocks: {{first: {}, last: {}}}"),
    ],
)
@pytest.mark.parametrize(
    ("more", "words"), [(1, "are more than the"), (0, "are the .* nothing is left to quantise")]
)
def test_blocks_in_bf16_leave_one_to_quantise(
    key: str, wanted: str, more: int, words: str, tmp_path: Path
) -> None:
    blocks = load("tiny", configs_dir=CONFIGS).models["1p2b"].num_blocks
    where = rf"own\.yaml: runs\.1p2b_own\.{key}: first 2 \+ last {blocks - 2 + more} blocks in BF16"
    with pytest.raises(ValueError, match=f"{where} {words}"):
        planned(tmp_path, wanted.format(2, blocks - 2 + more))


def test_one_block_left_is_enough(tmp_path: Path) -> None:
    blocks = load("tiny", configs_dir=CONFIGS).models["1p2b"].num_blocks
    run = planned(tmp_path, f"changes: {{bf16_blocks: {{first: 1, last: {blocks - 2}}}}}")
    assert run.recipe.blocks_in_bf16(blocks) < frozenset(range(blocks))


def test_a_run_without_formats_may_name_every_block(tmp_path: Path) -> None:
    blocks = load("tiny", configs_dir=CONFIGS).models["1p2b"].num_blocks
    changes = f"changes: {{bf16_blocks: {{first: 0, last: {blocks}}}}}"
    assert planned(tmp_path, changes, "1p2b_bf16").recipe.bf16_blocks.last == blocks
