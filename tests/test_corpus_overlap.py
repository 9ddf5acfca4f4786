"""docs/proxy_corpus.md says what the held-out text that training has seen too does to the recorded gaps."""

from __future__ import annotations

import re

import numpy as np
from readme_text import ROOT
from recorded_runs import RECORDED

from repro.analysis.record import read_record

PAGE = " ".join((ROOT / "docs" / "proxy_corpus.md").read_text(encoding="utf-8").split())
SEEN = ("sft", "math")
SEQUENCES = 256  # of the validation set: configs/tiers/proxy.yaml


def validations(run: str) -> dict[int, dict]:
    """Tokens -> what was measured there, of all segments of a run in order."""
    records = map(read_record, sorted((RECORDED / "runs" / run).glob("*.json.xz")))
    return {line["tokens"]: line for record in records for line in record["validation"]}


def sequences_by_category(found: list[dict]) -> dict[str, int]:
    """A loss is the mean over sequences: their numbers are what turns the categories' losses into it."""
    names = sorted(found[0]["loss_by_category"])
    losses = np.array([[line["loss_by_category"][name] for name in names] for line in found])
    total = np.array([line["loss"] for line in found])
    numbers = np.rint(SEQUENCES * np.linalg.lstsq(losses, total)[0])
    assert numbers.sum() == SEQUENCES
    assert np.abs(losses @ numbers / SEQUENCES - total).max() < 2e-6, "losses are kept to six digits"
    return dict(zip(names, map(int, numbers), strict=True))


def loss_of(line: dict, numbers: dict[str, int], left_out: tuple[str, ...]) -> float:
    counted = {name: number for name, number in numbers.items() if name not in left_out}
    return sum(number * line["loss_by_category"][name] for name, number in counted.items()) / sum(
        counted.values()
    )


def test_gaps_without_the_categories_that_training_has_seen_in_part():
    baselines = {"12b": "12b_fp8", "8b": "8b_bf16", "1p2b": "1p2b_bf16"}
    runs = {
        path.name: validations(path.name)
        for path in sorted((RECORDED / "runs").iterdir())
        if not re.search(r"_rate_|_1p\d+x$", path.name)  # the sweep; longer horizons, which have no baseline
    }
    numbers = sequences_by_category([line for found in runs.values() for line in found.values()])
    assert (
        f"Of the {SEQUENCES} validation sequences {numbers['sft']} are of sft and {numbers['math']} of math."
        in PAGE
    )
    ends = {}
    for run, found in runs.items():
        base = baselines[run.partition("_")[0]] + "".join(re.findall(r"_seed\d$", run))
        tokens = max(found.keys() & runs[base].keys())
        if run != base:
            ends[run] = [
                100
                * (
                    1
                    - loss_of(found[tokens], numbers, left_out)
                    / loss_of(runs[base][tokens], numbers, left_out)
                )
                for left_out in ((), SEEN)
            ]
    furthest = max(abs(without - with_all) for with_all, without in ends.values())
    assert f"the gaps at the end of {len(ends)} recorded runs move by {furthest:.2f} points at most" in PAGE
    assert "(NVFP4 of the 8B stand-in, seed 1: {:.2f} to {:.2f})".format(*ends["8b_nvfp4"]) in PAGE
