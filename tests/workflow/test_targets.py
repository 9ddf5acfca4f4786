"""A word that Snakemake is asked for and that nothing makes: it is told the nearest one."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fig99", "no figure, table or stage is called 'fig99'; did you mean 'fig9'?"),
        ("train-all", "no figure, table or stage is called 'train-all'; did you mean 'train_all'?"),
        ("12b_rht4", "a run, not a figure, table or stage; ask for results/tiny/runs/12b_rht4/0/done.json"),
        (
            "results/tiny/runs/12b_rth4/0/done.json",
            "no run '12b_rth4' at tier tiny; did you mean '12b_rht4'?",
        ),
        ("results/tiny/runs/12b_rht4/9/done.json", "run '12b_rht4' has segments 0 to 0, not 9"),
        ("results/tiny/evaluations/12b_rth4.csv", "no run '12b_rth4' at tier tiny; did you mean '12b_rht4'?"),
    ],
)
def test_a_word_that_nothing_makes_is_told_with_the_nearest(word, said, project):
    refused = project.snakemake("--dry-run", word)
    assert refused.returncode != 0
    [line] = [line for line in (refused.stdout + refused.stderr).splitlines() if said in line]
    assert line.startswith("error: ")
    assert "Traceback" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "tier=typo"], "no tier 'typo' in configs/tiers; did you mean 'tiny'?"),
        (["--config", "results="], "results: say a name"),
        (["--config", "results=Snakefile"], "Not a directory: 'Snakefile/tiny"),
        (["--configfile", "twice.yaml"], "twice.yaml: line 2: 'tier' is there twice (first on line 1)"),
    ],
)
def test_what_is_wrong_with_the_configuration_is_one_line(arguments, said, project):
    (project.folder / "twice.yaml").write_text("tier: tiny\ntier: proxy\n", encoding="utf-8")
    refused = project.snakemake("--dry-run", "all", *arguments)
    assert refused.returncode != 0
    output = refused.stdout + refused.stderr
    [line] = [line for line in output.splitlines() if said in line]
    assert line.startswith("error: ")
    assert output.rstrip().endswith(line), "nothing stands behind it"


def test_a_run_of_the_sweep_is_trained_when_it_is_asked_for(project):
    wanted = "results/proxy/runs/8b_rate_2em3/0/done.json"
    assert "training 8b_rate_2em3, segment 0" in project.dry_run(wanted, "--config", "tier=proxy")


def test_the_words_that_are_told_are_asked_for_like_before(project):
    """The refusal makes a file of any name: it must neither take over a target nor stand among them."""
    assert project.dry_run("fig9", "train_all", "results/tiny/runs/12b_rht4/0/done.json") == set()
    targets = project.snakemake("--list-target-rules").stdout.split()
    assert {"fig9", "train_all", "all"} <= set(targets)
    assert "unknown_name" not in targets
