"""README and docs/proxy_results.md say of the proxy tier what the records hold, number by number."""

from __future__ import annotations

import re
from collections import Counter
from math import sqrt
from statistics import mean, median, stdev

import numpy as np
import pandas as pd
import pytest
import yaml
from proxy_claims import HERE, PAPER, ROWS, SAID, drawn, drawn_pair, number
from readme_text import ROOT, proxy_words
from recorded_runs import RECORDED, STEPS, before, gaps, losses, steps_late

from repro.analysis.claims_file import load_claims
from repro.analysis.noise import own_limit
from repro.analysis.record import read_record

PAGE = (ROOT / "docs" / "proxy_results.md").read_text(encoding="utf-8")
WORDS = proxy_words()
SEEDS = ("", "_seed2", "_seed3")


def test_models_and_tokens_are_the_recorded_ones():
    sizes = {}
    for run in ("12b_fp8", "8b_nvfp4", "8b_mxfp4_1p25x", "8b_mxfp4_1p5x", "1p2b_bf16"):
        done = read_record(RECORDED / "runs" / run / "0.json.xz")["done"]
        sizes[run] = done["num_parameters"] / 1e6, f"{done['end_tokens'] / 1e6:.0f}M"
    (large, tokens), (medium, same), (small, few) = (
        sizes[run] for run in ("12b_fp8", "8b_nvfp4", "1p2b_bf16")
    )
    longer = " and ".join(sizes[run][1] for run in ("8b_mxfp4_1p25x", "8b_mxfp4_1p5x"))
    assert f"({large:.0f}M parameters, {tokens} tokens)" in WORDS
    assert f"({medium:.1f}M parameters, {same} tokens, MXFP4 also {longer})" in WORDS
    assert f"({small:.1f}M parameters, {few} tokens)" in WORDS
    assert f"{float(tokens[:-1]) / large:.0f} tokens a parameter are not" in WORDS


def test_no_claim_lacks_a_run():
    assert not [row[0] for row in ROWS if row[5].startswith("not recorded:")]
    assert "no claim of the tier lacks one." in WORDS


def test_every_figure_has_its_runs_and_what_is_repeated_is_told():
    folders = [folder.parent for folder in (ROOT / "paper_figures").glob("fig*/paper.yaml")]
    for folder in folders:
        needs = yaml.safe_load((folder / "paper.yaml").read_text(encoding="utf-8"))["needs"]["runs"]
        assert all((RECORDED / "runs" / run).is_dir() for run in needs), folder.name
    assert "Every figure with curves has real runs," in WORDS
    seeds = Counter(path.name.partition("_seed")[0] for path in (RECORDED / "runs").iterdir())
    assert {run: number for run, number in seeds.items() if number > 1} == {
        "1p2b_bf16": 3, "1p2b_last4": 3, "1p2b_last4_2d": 2, "1p2b_last4_2d_rht": 2, "1p2b_last4_2d_rht_sr": 3,
        "8b_bf16": 3, "8b_nvfp4": 3, "8b_mxfp4": 2,
    }  # fmt: skip
    assert "In Figure 6 BF16 and NVFP4 have three seeds, MXFP4 two; in Figure 8 BF16," in WORDS
    assert "the last 4 blocks in BF16 and the full method have three, the other two runs two." in WORDS
    assert "**Everything else has one**" in WORDS


def test_the_verdicts_are_counted_as_the_page_of_claims_counts_them():
    for count, verdict in re.findall(r"(\d+) (reproduced|unresolved|not measur\w+)", SAID):
        assert re.search(rf"\b{count} (are )?(is )?{verdict}", WORDS), verdict
    exact = [
        name for name, claim in load_claims(ROOT / "configs" / "claims.yaml").items() if claim.kind == "exact"
    ]
    assert [row[0] for row in ROWS if row[4] == "reproduced"] == [*exact, "C7a"]
    assert not [row for row in ROWS if row[4] == "contradicted"]


def test_each_unresolved_claim_is_looked_into():
    reasons = {row[0]: row[5] for row in ROWS if row[4] == "unresolved"}
    assert list(reasons) == ["C7b", "C19", "C21", "C23"]
    jump = re.match(r"\S+", HERE["C7b"])[0]
    other = re.search(r"FP8's loss is (\S+) off its own", reasons["C7b"])[1]
    assert f"NVFP4's {jump} nats there are no jump, FP8 lies {other} off its own line" in WORDS
    assert abs(float(jump) - float(other)) < 0.001
    phases = yaml.safe_load((ROOT / "configs" / "data" / "proxy.yaml").read_text(encoding="utf-8"))
    second, third = (phase["blend"] for phase in phases["blends"]["three_phase"][1:])
    shares = [100 * blend["crawl"] / sum(blend.values()) for blend in (second, third)]
    assert "web crawl from {:.1f} to {:.1f} % of the text".format(*shares) in WORDS
    later, earlier = map(float, re.findall(r"(0\.\d+) in the", HERE["C21"]))
    assert f"they have ({later:.3f} of their norm to {earlier:.3f})" in WORDS
    assert (
        f"it is {re.search(r'([0-9.]+) standard deviations from none', reasons['C21'])[1]} standard" in WORDS
    )
    early, late = re.search(r"shows no such trend: (\S+) at 34.3 %, (\S+) at 100 %", reasons["C21"]).groups()
    assert f"the other way (tau {early} after a third of the horizon, {late} at the end)" in WORDS
    assert float(late) < 0
    for claim in ("C19", "C23"):
        assert reasons[claim].startswith("interval includes zero:")


def test_the_switches_bring_back_what_is_told():
    nvfp4, forward = (gaps(run, "12b_fp8", "validation") for run in ("12b_nvfp4", "12b_switch_forward_82"))
    first, switch = min(forward), min(losses("12b_switch_forward_82")) - 1
    last = max(step for step in nvfp4 if step < switch)
    assert f"from {nvfp4[last]:.2f} to {forward[first]:.2f} within {first - switch} steps" in WORDS
    assert stdev(forward.values()) < 0.1, "holds it"
    assert f"both passes gains another {float(number('C29')) - float(number('C31')):.2f};" in WORDS
    assert float(drawn("C29")) >= 0, "in the paper it closes the gap"


def test_what_the_decay_does_to_the_gaps():
    table = pd.read_csv(ROOT / "paper_figures" / "fig2" / "paper.csv").pivot_table(
        index="tokens_trillions", columns="run", values="value"
    )
    apart = (table["12b_nvfp4"] - table["12b_fp8"]).dropna()
    paper = apart[(apart.index > 7.8) & (apart.index <= 8)].mean(), apart[apart.index > 10.08].mean()
    wider = float(drawn("C5")) - float(drawn("C6"))
    assert f"grows by {wider:.2f} points, from {paper[0]:.3f} to {paper[1]:.3f} nats" in WORDS
    of = {text: gaps("12b_nvfp4", "12b_fp8", text) for text in ("validation", "train")}
    growth = {text: before(values, 0.8) - before(values, 1) for text, values in of.items()}
    assert f"by {growth['validation']:.2f} in validation loss" in WORDS
    assert f"by {growth['train']:.2f} in training loss" in WORDS
    small = [gaps(f"8b_nvfp4{seed}", f"8b_bf16{seed}") for seed in SEEDS]
    grown = [before(values, 0.85) - before(values, 1) for values in small]
    assert "three seeds it grows by {:.2f}, {:.2f} and {:.2f} in training loss".format(*grown) in WORDS
    assert mean(grown) > own_limit(grown), "no chance"
    own, base = losses("12b_nvfp4", "validation"), losses("12b_fp8", "validation")
    nats = {step: own[step] - base[step] for step in own if step in base}
    assert f"{before(nats, 0.8):.3f} nats before and after" in WORDS
    assert f"{before(nats, 1):.3f} nats before and after" in WORDS
    flat = {step: value for step, value in of["validation"].items() if 0.3 < step / STEPS <= 0.8}
    line = np.polyfit(list(flat), list(flat.values()), 1)
    assert f"scatter by {stdev(np.array([*flat.values()]) - np.polyval(line, list(flat))):.1f})" in WORDS


def dip(run: str, base: str) -> tuple[str, str, str]:
    """Lowest gap, steps late and the training step furthest off, between 9 and 20 % of the horizon."""
    gap, late = gaps(run, base, "validation"), steps_late(run, base)
    lowest = min(gap, key=gap.__getitem__)
    nats = losses(run, "validation")[lowest] - losses(base, "validation")[lowest]
    inside = [steps for step, steps in late.items() if 0.09 < step / STEPS < 0.2]
    assert 0.09 < lowest / STEPS < 0.2
    assert min(inside) > max(steps for step, steps in late.items() if step < 0.08 * STEPS), "loses steps"
    assert min(steps for step, steps in late.items() if step / STEPS > 0.2) >= min(inside), "not made up"
    own, other = losses(run), losses(base)
    apart = {step: own[step] - other[step] for step in own}
    away = [
        abs(apart[step] - median(apart[near] for near in range(step - 10, step + 11)))
        for step in apart
        if 0.09 < step / STEPS < 0.2
    ]
    return (
        f"{gap[lowest]:.2f} %, {nats:.2f} nats",
        f"{min(inside):.0f} to {max(inside):.0f}",
        f"{max(away):.2f} nats",
    )


def test_the_dips_are_delays_and_no_spike():
    table = PAGE.partition("| 9 to 20 % of the horizon |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    pairs = [
        ("12b_nvfp4", "12b_fp8", ""),
        *(("8b_nvfp4", "8b_bf16", seed) for seed in SEEDS),
        *(("8b_mxfp4", "8b_bf16", seed) for seed in SEEDS[:2]),
    ]
    assert len(rows) == len(pairs)
    depths = {}
    for (words, *cells), (run, base, seed) in zip(rows, pairs, strict=True):
        size, own, other = (*run.split("_"), base.split("_")[1])
        assert (
            words
            == f"{own.upper()} to {other.upper()}, {size.upper()} stand-in, seed {SEEDS.index(seed) + 1}"
        )
        assert tuple(cells) == dip(f"{run}{seed}", f"{base}{seed}")
        depths[run, seed] = float(cells[0].partition(" ")[0])
    first, *others = (depths["8b_nvfp4", seed] for seed in SEEDS)
    assert all(round(first / other) in (3, 4) for other in others), "three times as deep in seed 1"
    assert "NVFP4's is three times as deep in seed 1 as in the others." in WORDS


def test_no_gradient_norm_stands_out_where_the_dips_are():
    furthest = {"8b_bf16": 0.0, "quantised": 0.0}
    for run, seed in (("8b_bf16", 2), ("8b_bf16", 3), ("8b_nvfp4", 2), ("8b_nvfp4", 3), ("8b_mxfp4", 2)):
        norms = read_record(RECORDED / "runs" / f"{run}_seed{seed}" / "0.json.xz")["train"]["grad_norm"]
        key = run if run in furthest else "quantised"
        for step in range(int(0.09 * STEPS), int(0.2 * STEPS)):
            furthest[key] = max(furthest[key], norms[step] / median(norms[step - 10 : step + 11]))
    assert f"{furthest['8b_bf16']:.1f}" == f"{furthest['quantised']:.1f}"
    assert f"reach at most {furthest['quantised']:.1f} times the median of the 21 steps" in WORDS


FORKS = ("rht4", "rht128", "signs_none", "signs_per_transform", "sr_dgrad_only", "sr_wgrad_only")


def costs(fork: str) -> float:
    """Points of gap in training loss that a fork loses to the run it left, over its last 2 % of the horizon."""
    steps = list(losses(f"12b_{fork}"))[-62:]
    own, kept = gaps(f"12b_{fork}", "12b_fp8"), gaps("12b_nvfp4", "12b_fp8")
    return mean(kept[step] - own[step] for step in steps)


def test_what_the_ablations_cost():
    forks = [*FORKS, "without_rht", "without_sr"]
    noise = max(abs(costs(fork)) for fork in forks)
    assert f"only fewer blocks in BF16 cost something, {costs('last4_bf16'):.2f}, and" in WORDS
    assert f"without 2D scales the run ends {-costs('without_2d'):.2f} ahead" in WORDS
    assert f"stay within {noise:.2f}; they scatter by {stdev(map(costs, forks)):.3f}" in WORDS
    assert len(forks) == 8
    assert min(costs("last4_bf16"), -costs("without_2d")) > 3 * stdev(map(costs, forks))


def test_how_much_of_the_bend_is_the_decays():
    found = losses("12b_nvfp4", "validation")

    def fall(start: float, end: float) -> float:
        """Nats that the line through a part of the horizon falls in one per cent of it."""
        part = [step for step in found if start - 1e-9 <= step / STEPS <= end + 1e-9]
        return -np.polyfit([100 * step / STEPS for step in part], [found[step] for step in part], 1)[0]

    before, still, decay = fall(0.6, 0.7), fall(0.7, 0.8), fall(0.8, 0.9)
    assert f"falls by {before:.4f} nats a per cent before and stands still after" in WORDS
    assert f"falls by {decay:.4f} in the decay" in WORDS
    assert abs(still) < 1e-4
    assert before / decay == pytest.approx(0.5, abs=0.05), "half"


def scores(run: str) -> pd.DataFrame:
    table = pd.read_csv(RECORDED / "evaluations" / f"{run}.csv.xz")
    return table.set_index(["task", "group", "fraction"])[["value", "stderr", "chance"]].sort_index()


def at_chance(rows: pd.DataFrame) -> pd.Series:
    """Whether a score lies within two standard errors of guessing."""
    return (rows["value"] - rows["chance"]).abs() < 2 * rows["stderr"]


def test_the_tasks_differ_as_told():
    fp8, nvfp4 = scores("12b_fp8"), scores("12b_nvfp4")
    apart, error = nvfp4["value"] - fp8["value"], np.hypot(nvfp4["stderr"], fp8["stderr"])
    end = apart.loc["mean", :, 1.0].abs() / error.loc["mean", :, 1.0]
    assert len(end) == 5
    assert (end < 1).all()
    ends = [table.drop("mean").xs(1.0, level="fraction") for table in (fp8, nvfp4)]
    idle_tasks = np.logical_and(*(at_chance(end) for end in ends))
    done = np.logical_and(*(end["value"] > 0.97 for end in ends))
    numbers = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
    telling = ~(idle_tasks | done)
    assert f"only {numbers[telling.sum()]} of {len(telling)} tasks could tell (none of mathematics)" in WORDS
    assert (
        f"{numbers[done.sum()]} are above 97 % in both runs, {numbers[idle_tasks.sum()]} at chance" in WORDS
    )
    assert not telling.xs("math", level="group").any()
    multilingual = apart.loc["mean", "multilingual"]
    place = multilingual.idxmin()
    assert multilingual.abs().max() == apart.loc["mean"].abs().max()
    idle = ["foreign_continuation", "language"]
    for table in (fp8, nvfp4):
        assert at_chance(table.loc[idle]).all()
        assert idle_tasks[idle].all()
    share = sum(apart.loc[task, "multilingual", place] for task in idle) / 3
    told = f"{-100 * share:.1f} of the {-100 * multilingual[place]:.1f} points"
    assert f"at chance, where {told} of Figure 3's largest difference come from" in WORDS


def test_where_the_seeds_of_the_8b_stand_in_end():
    nvfp4 = [before(gaps(f"8b_nvfp4{seed}", f"8b_bf16{seed}"), 1) for seed in SEEDS]
    mxfp4 = [before(gaps(f"8b_mxfp4{seed}", f"8b_bf16{seed}"), 1) for seed in SEEDS[:2]]
    assert "BF16 by {:.2f}, {:.2f} and {:.2f} per cent,".format(*(-gap for gap in nvfp4)) in WORDS
    middle, low, high = map(float, re.search(r"NVFP4 (\S+) \[(\S+), (\S+)\]", HERE["C27"]).groups())
    assert middle == round(mean(nvfp4), 2)
    paper = {name: float(gap) for name, gap in zip(("nvfp4", "mxfp4"), drawn_pair("C27"), strict=True)}
    assert f"by {-middle:.2f} with a 95 % interval of {high - middle:.2f} to either side" in WORDS
    assert low < paper["nvfp4"] < high
    assert f"in which the paper's {-paper['nvfp4']:.2f} lies" in WORDS
    assert "MXFP4 by {:.2f} and {:.2f}, which".format(*(-gap for gap in mxfp4)) in WORDS
    apart = [one - other for one, other in zip(nvfp4, mxfp4, strict=False)]
    assert (
        "which is {:.2f} and {:.2f} behind NVFP4 (the paper: {:.2f})".format(
            *apart, paper["nvfp4"] - paper["mxfp4"]
        )
        in WORDS
    )
    table = pd.read_csv(ROOT / "paper_figures" / "fig6" / "paper.csv")
    papers = table[(table["run"] == "8b_nvfp4") & (table["panel"] == "a")].set_index("tokens_trillions")[
        "value"
    ]
    half = [
        -mean(values)
        for values in (
            papers[(papers.index > 0.4) & (papers.index <= 0.6)],
            [
                gap
                for seed in SEEDS
                for step, gap in gaps(f"8b_nvfp4{seed}", f"8b_bf16{seed}").items()
                if 0.4 < step / STEPS <= 0.6
            ],
        )
    ]
    assert f"NVFP4 is {half[0]:.1f} behind at half of the horizon" in WORDS
    assert f"here it is {half[1]:.1f} behind by then." in WORDS
    scatter = sqrt((2 * stdev(nvfp4) ** 2 + stdev(mxfp4) ** 2) / 3)
    assert f"Between seeds a gap scatters by {scatter:.2f} points." in WORDS
    assert "by 0.6 points, ten times as much as on the 8B stand-in" in WORDS
    assert round(0.6 / scatter) in range(9, 12)


def test_how_far_mxfp4_is_behind_in_figure_6():
    end = {
        run: [*losses(run, "validation").values()][-1]
        for run in ("8b_nvfp4", "8b_mxfp4", "8b_nvfp4_seed2", "8b_mxfp4_seed2", "8b_mxfp4_1p25x")
    }
    table = pd.read_csv(ROOT / "paper_figures" / "fig6" / "paper.csv")
    paper = table[table["panel"] == "b"].set_index("run")["value"]
    behind = [
        100 * (of[f"8b_nvfp4{seed}"] - of[f"8b_mxfp4{seed}"]) / of[f"8b_nvfp4{seed}"]
        for of, seed in ((end, ""), (end, "_seed2"), (paper, ""))
    ]
    gain = [100 * (1 - of["8b_mxfp4_1p25x"] / of["8b_mxfp4"]) for of in (end, paper)]
    assert "is {:.2f} and {:.2f} in two seeds; the paper's {:.1f}".format(*behind) in WORDS
    assert f"lowers the loss by {gain[0]:.1f} % instead of {gain[1]:.1f} %" in WORDS
    more, papers = (re.match(r"\d+", text["C28"])[0] for text in (HERE, PAPER))
    assert f"hence MXFP4 needs {more} % more tokens for NVFP4's loss, not {papers} %." in WORDS
    for seed in SEEDS[:2]:
        nvfp4, mxfp4 = (
            gaps(f"8b_{name}{seed}", f"8b_bf16{seed}", "validation") for name in ("nvfp4", "mxfp4")
        )
        after = {step / STEPS for step in nvfp4 if nvfp4[step] < mxfp4[step]}
        assert bool(after) == (seed == ""), "in seed 2 at no point"
        if after:
            assert after == {step / STEPS for step in nvfp4 if min(after) <= step / STEPS <= max(after)}
            assert f"from {100 * min(after):.0f} to {100 * max(after):.0f} % of the horizon" in WORDS


def test_what_is_said_of_the_layers():
    table = pd.read_csv(ROOT / "paper_figures" / "mechanisms" / "recorded" / "proxy.csv")
    end = table[(table["fraction"] == 1) & (table["run"] == "12b_nvfp4")]
    of = end.groupby(["quantity", "gemm", "variant"])["value"].mean()
    assert "SR takes bias away and adds error, and RHT adds error" in WORDS
    for gemm in ("dgrad", "wgrad"):
        bias, error = of["gradient_bias", gemm], of["gradient_error", gemm]
        assert bias["sr"] < bias["rne"] / 2, "SR takes bias away"
        assert error["sr"] > error["rne"], "and adds error"
    assert of["wgrad_error", "wgrad", "rht"] > of["wgrad_error", "wgrad", "none"], "RHT adds error"
