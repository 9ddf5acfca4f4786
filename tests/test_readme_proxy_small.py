"""What README and docs/proxy_results.md say of the 1.2B model's stand-in, from the records."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from itertools import pairwise
from math import sqrt
from statistics import mean, stdev

import numpy as np
from proxy_claims import PAPER
from readme_text import ROOT, proxy_words
from recorded_runs import RECORDED, gaps, losses

from repro.analysis.noise import own_limit
from repro.analysis.record import read_record

WORDS = proxy_words()
BF16 = "1p2b_bf16"
#: With the first seed, and with others, without BF16.
FIRST, OTHERS = (
    sorted(
        path.name
        for path in (RECORDED / "runs").glob("1p2b_*")
        if "_rate_" not in path.name and "_bf16" not in path.name and ("_seed" in path.name) == others
    )
    for others in (False, True)
)
RUNS = FIRST + OTHERS
STEPS = 1600
FIGURE_8 = ("1p2b_last4", "1p2b_last4_2d", "1p2b_last4_2d_rht", "1p2b_last4_2d_rht_sr")


def bf16_of(run: str) -> str:
    """BF16 with the run's seed."""
    return BF16 + "".join(re.findall(r"_seed\d$", run))


@cache
def end(run: str) -> float:
    """Gap in the last validation, per cent."""
    return gaps(run, bf16_of(run), "validation")[STEPS]


def horizon(run: str) -> float:
    """Millions of tokens."""
    return read_record(RECORDED / "runs" / run / "0.json.xz")["done"]["end_tokens"] / 1e6


def passes(run: str, loss: float) -> float:
    """Share of the horizon at which the validation loss falls below this one."""
    found = losses(run, "validation")
    falling = np.minimum.accumulate(list(found.values()))
    return float(np.interp(-loss, -falling, list(found))) / max(found)


def late(run: str, loss: float) -> float:
    """Share of the horizon by which a run passes a loss later than BF16."""
    return passes(run, loss) - passes(bf16_of(run), loss)


def falls(run: str) -> float:
    """Nats by which the validation loss falls in a million tokens, from 60 to 80 % of the horizon."""
    found = losses(run, "validation")
    inside = [step for step in found if 0.6 <= step / max(found) <= 0.8]
    tokens = (inside[-1] - inside[0]) / max(found) * horizon(run)
    return (found[inside[0]] - found[inside[-1]]) / tokens


def paper_end(run: str, *claims: str) -> float:
    """What the page of claims says that the paper draws for a label."""
    return float(re.search(rf"{re.escape(run)} (-[\d.]+)", "".join(PAPER[claim] for claim in claims))[1])


def test_where_the_runs_of_the_first_seed_end():
    *rest, furthest = sorted(FIRST, key=lambda run: -end(run))
    assert furthest == "1p2b_sr_weights"
    assert (
        f"all {len(FIRST)} runs end behind BF16, {len(rest)} of them by {-end(rest[0]):.1f} to "
        f"{-end(rest[-1]):.1f}, SR on weights by {-end(furthest):.1f}."
    ) in WORDS
    assert end(rest[0]) < 0
    parameters = read_record(RECORDED / "runs" / BF16 / "0.json.xz")["done"]["num_parameters"]
    assert f"None diverges in {horizon(BF16) * 1e6 / parameters:.1f} tokens a parameter" in WORDS
    ends = sorted(
        float(tokens)
        for claim in ("C20", "C22")
        for tokens in re.findall(r"diverges at ([\d.]+)T", PAPER[claim])
    )
    first, second, third = ends[:3]
    told = [f"{tokens * 1e12 / 1.292e9:.0f}" for tokens in ends[:3]]
    assert (
        f"(the paper's first three do at {first}T, {second}T and {third}T: {told[0]}, {told[1]} and {told[2]})"
        in WORDS
    )


def best_to_worst(*runs: str) -> list[str]:
    return sorted(runs, key=lambda run: -end(f"1p2b_{run}"))


def test_what_is_left_of_the_papers_orders():
    assert best_to_worst("last4", "last4_2d", "last4_2d_rht", "last4_2d_rht_sr")[-1] == "last4"
    assert best_to_worst("sr_gradients", "sr_backward", "sr_activations", "sr_weights")[-1] == "sr_weights"
    assert best_to_worst("rht_wgrad", "last4", "rht_dgrad", "rht_fprop")[0] == "rht_wgrad"
    assert best_to_worst("activations_same", "activations_different")[0] == "activations_same"
    assert best_to_worst("last4", "first2_last2", "last2", "last1", "first4")[-1] == "last4"
    assert best_to_worst("weights_same", "weights_2d", "weights_different")[-1] == "weights_same"
    papers = [PAPER[claim] for claim in ("C19", "C22", "C23", "C26", "C20")]
    assert papers[0].rpartition(" > ")[2].startswith("last 4 blocks in BF16")
    assert re.search(r"on weights diverges at 0.51T", papers[1])
    assert papers[2].startswith("RHT on Wgrad")
    assert papers[3].startswith("weights, one 1x16 -1.14 > ")
    assert papers[4].startswith("last 4 and first 2 + last 2 end")


def seeds_of(run: str) -> list[float]:
    """Gaps of a run at the end, its first seed first."""
    return [end(name) for name in (run, *OTHERS) if re.fullmatch(rf"{run}(_seed\d)?", name)]


def test_seeds_scatter_as_told():
    figure = [seeds_of(run) for run in FIGURE_8]
    last4, full = figure[0], figure[-1]
    assert [len(gaps) for gaps in figure] == [3, 2, 2, 3], "the other two runs two"
    assert sum(len(gaps) - 1 for gaps in figure) == len(OTHERS), "and no other run has a second seed"
    assert "the full method at {:.2f}, {:.2f} and {:.2f}, the last four".format(*full) in WORDS
    assert "the last four blocks alone at {:.2f}, {:.2f} and {:.2f}.".format(*last4) in WORDS
    pooled = sqrt(sum((len(gaps) - 1) * stdev(gaps) ** 2 for gaps in figure) / len(OTHERS))
    assert f"between seeds is {pooled:.1f} points (standard deviation);" in WORDS
    page = " ".join((ROOT / "docs" / "campaign.md").read_text(encoding="utf-8").split())
    assert f"A gap of the 1.2B stand-in scatters by {pooled:.1f} points between seeds" in page
    order = ("last 4 blocks in BF16", "+ 2D weight scales", "+ RHT", "+ SR")
    paper = [paper_end(label, "C19") for label in order]
    steps = [later - earlier for earlier, later in pairwise(paper)]
    assert "steps in Figure 8 are {:.2f}, {:.2f} and {:.2f}.".format(*steps) in WORDS
    paired = sqrt(
        mean(
            stdev([later[seed] - earlier[seed] for seed in (0, 1)]) ** 2
            for earlier, later in pairwise(figure)
        )
    )
    assert (
        f"the three steps scatter by {paired:.1f} between the two seeds that all runs have, as those of "
        f"independent runs would ({pooled * sqrt(2):.1f})" in WORDS
    )
    gains = [own - other for own, other in zip(full, last4, strict=True)]
    assert (
        "the full method gains {:.2f}, {:.2f} and {:.2f}, in the mean {:.2f} with a 95 % interval of {:.2f}".format(
            *gains, mean(gains), own_limit(gains)
        )
        in WORDS
    )
    assert f"The paper's {paper[-1] - paper[0]:.2f} lies outside" in WORDS
    assert paper[-1] - paper[0] > mean(gains) + own_limit(gains)
    assert (
        f"Over its three seeds the full method ends {-mean(full):.2f} behind BF16, with a 95 % interval of "
        f"{own_limit(full):.2f} to either side" in WORDS
    )


def test_what_the_paper_says_without_a_figure():
    def ends(*runs: str) -> list[float]:
        return [end(f"1p2b_{run}") for run in runs]

    assert (
        "both runs end, at {:.2f} and {:.2f} (seed 1; the last four blocks in BF16 at {:.2f})".format(
            *ends("base_all", "sr_all", "last4")
        )
        in WORDS
    )
    sizes = ends("rht_size2", "rht_size4", "last4_2d_rht_sr", "rht_size128")
    assert "sizes 2, 4, 16 and 128 end at {:.2f}, {:.2f}, {:.2f} and {:.2f}, one".format(*sizes) in WORDS
    signs = ends("last4_2d_rht_sr", "signs_per_transform", "signs_none")
    assert "new signs each time and none at {:.2f}, {:.2f} and {:.2f}.".format(*signs) in WORDS
    scatter = max(max(gaps) - min(gaps) for gaps in map(seeds_of, FIGURE_8))
    assert (
        "Neither the sizes nor the signs lie further apart than two seeds of the last four blocks alone do "
        f"({scatter:.2f})" in WORDS
    )
    assert max(seeds_of(FIGURE_8[0])) - min(seeds_of(FIGURE_8[0])) == scatter
    assert max(max(found) - min(found) for found in (sizes, signs)) < scatter


def test_equal_forward_passes_begin_with_equal_losses():
    first = defaultdict(set)
    for run in (BF16, *FIRST):
        record = read_record(RECORDED / "runs" / run / "0.json.xz")
        forward = [line for line in record["done"]["precision"] if line["gemm"] == "fprop"]
        first[str(forward)].add(record["train"]["loss"][0])
    assert [len(found) for found in first.values()] == [1] * len(first)
    assert len(set.union(*first.values())) == len(first) < len(FIRST), "and only these"
    assert "equal forward passes begin with equal losses, to the last digit recorded" in WORDS


def test_the_steep_stretch_takes_the_tokens_that_are_told():
    shares = {run: (passes(run, 4.2), passes(run, 3.2)) for run in (BF16, "8b_bf16", "12b_fp8")}
    tokens = {run: (end - start) * horizon(run) for run, (start, end) in shares.items()}
    assert (
        f"{tokens['8b_bf16']:.0f}M and {tokens['12b_fp8']:.0f}M of {horizon('12b_fp8'):.0f}M tokens" in WORDS
    )
    assert max(shares[run][1] for run in ("8b_bf16", "12b_fp8")) < 0.2, "before a fifth of the horizon"
    start, end = shares[BF16]
    assert (
        f"{tokens[BF16]:.0f}M of {horizon(BF16):.0f}M, from {100 * start:.0f} to {100 * end:.0f} %" in WORDS
    )
    stretch = [
        gap
        for run in RUNS
        for step, gap in gaps(run, bf16_of(run), "validation").items()
        if start < step / STEPS < end
    ]
    assert f"gaps down to {min(stretch):.1f}," in WORDS
    assert min(stretch) == min(min(gaps(run, bf16_of(run), "validation").values()) for run in RUNS)
    for run, base in (("12b_nvfp4", "12b_fp8"), ("8b_nvfp4", "8b_bf16"), ("8b_mxfp4", "8b_bf16")):
        gap = gaps(run, base, "validation")
        assert 3.2 < losses(base, "validation")[min(gap, key=gap.__getitem__)] < 4.2, "as the dips do"
    small, medium, large = (falls(run) for run in (BF16, "8b_bf16", "12b_fp8"))
    assert f"BF16's loss falls by {small:.4f} nats a million tokens" in WORDS
    assert f"8B and 12B stand-ins by {medium:.4f} and {large:.4f}." in WORDS


def test_when_a_delay_tells_the_end():
    def correlation(loss: float) -> float:
        return -np.corrcoef([late(run, loss) for run in RUNS], [end(run) for run in RUNS])[0, 1]

    assert f"(correlation over the {len(RUNS)} runs: {correlation(4.0):.1f})" in WORDS
    assert (
        f"at 3.0, or {100 * passes(BF16, 3.0):.0f} % of the horizon, nearly all ({correlation(3.0):.1f})"
        in WORDS
    )
