"""A word that Snakemake is asked for and that nothing makes: it is told the nearest one."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fig99", "no figure, table or stage is called 'fig99'; did you mean 'fig9'?"),
        ("train-all", "no figure, table or stage is called 'train-all'; did you mean 'train_all'?"),
        ("12b_rht4", "a run, not a figure, table or stage; ask for results/tiny/runs/12b_rht4/0/done.json"),
    ],
)
def test_a_word_that_nothing_makes_is_told_with_the_nearest(word, said, project):
    refused = project.snakemake("--dry-run", word)
    assert refused.returncode != 0
    assert said in refused.stdout + refused.stderr


def test_the_words_that_are_told_are_asked_for_like_before(project):
    """The refusal makes a file of any name: it must neither take over a target nor stand among them."""
    assert project.dry_run("fig9", "train_all", "results/tiny/runs/12b_rht4/0/done.json") == set()
    targets = project.snakemake("--list-target-rules").stdout.split()
    assert {"fig9", "train_all", "all"} <= set(targets)
    assert "unknown_name" not in targets
