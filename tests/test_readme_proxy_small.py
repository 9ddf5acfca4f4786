"""What the README says of the 1.2B model's stand-in: its steep stretch, delays and ends, from the records."""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import mean

import numpy as np
import pandas as pd
from readme_text import ROOT, claims_table, section
from recorded_runs import RECORDED, gaps, losses

from repro.analysis.record import read_record
from repro.campaign.__main__ import main
from repro.experiments import freeze_all, load

WORDS = " ".join(section("The proxy tier so far").split())
PAPER = {row[0]: row[2] for row in claims_table("recorded/proxy/claims.md")[1]}
BF16 = "1p2b_bf16"
RUNS = sorted(
    path.name
    for path in (RECORDED / "runs").glob("1p2b_*")
    if "_rate_" not in path.name and path.name != BF16
)
STEPS = 1600
END = {run: gaps(run, BF16, "validation")[STEPS] for run in RUNS}  # per cent


def horizon(run: str) -> float:
    """Millions of tokens."""
    return read_record(RECORDED / "runs" / run / "0.json.xz")["done"]["end_tokens"] / 1e6


def passes(run: str, loss: float) -> float:
    """Share of the horizon at which the validation loss falls below this one."""
    found = losses(run, "validation")
    falling = np.minimum.accumulate(list(found.values()))
    return float(np.interp(-loss, -falling, list(found))) / max(found)


def late(run: str, loss: float) -> float:
    """Millions of tokens by which a run passes a loss later than BF16."""
    return (passes(run, loss) - passes(BF16, loss)) * horizon(BF16)


def falls(run: str) -> float:
    """Nats by which the validation loss falls in a million tokens, from 60 to 80 % of the horizon."""
    found = losses(run, "validation")
    inside = [step for step in found if 0.6 <= step / max(found) <= 0.8]
    tokens = (inside[-1] - inside[0]) / max(found) * horizon(run)
    return (found[inside[0]] - found[inside[-1]]) / tokens


def span(values: list[float], digits: int = 1) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def test_the_ends_lie_in_three_groups():
    behind = {run: -gap for run, gap in END.items()}
    near = [value for value in behind.values() if value < 1.3]
    far = [value for value in behind.values() if 1.3 < value < 3]
    assert (len(near), len(far)) == (5, 7)
    assert (
        f"Five runs end {span(near)} behind BF16, seven {span(far)}, SR on weights {max(behind.values()):.1f}."
        in WORDS
    )
    assert len(RUNS) == len(near) + len(far) + 1 == 13
    assert behind["1p2b_weights_same"] in far
    assert behind["1p2b_last4_2d"] in near
    parameters = read_record(RECORDED / "runs" / BF16 / "0.json.xz")["done"]["num_parameters"]
    assert f"None diverges in {horizon(BF16) * 1e6 / parameters:.1f} tokens a parameter" in WORDS
    ends = [float(tokens) * 1e12 / 1.292e9 for tokens in re.findall(r"diverges at ([\d.]+)T", PAPER["C22"])]
    assert len(ends) == 2
    assert f"(the paper's two do at {min(ends):.0f} and {max(ends):.0f})" in WORDS


def best_to_worst(*runs: str) -> list[str]:
    return sorted(runs, key=lambda run: -END[f"1p2b_{run}"])


def test_which_ends_of_the_papers_orders_are_kept():
    assert best_to_worst("last4", "last4_2d", "last4_2d_rht", "last4_2d_rht_sr")[-1] == "last4"
    assert best_to_worst("sr_gradients", "sr_backward", "sr_activations", "sr_weights")[-1] == "sr_weights"
    assert best_to_worst("rht_wgrad", "last4", "rht_dgrad", "rht_fprop")[0] == "rht_wgrad"
    assert best_to_worst("weights_same", "weights_different") == ["weights_different", "weights_same"]
    papers = [PAPER[claim] for claim in ("C19", "C22", "C23", "C26")]
    assert papers[0].rpartition(" > ")[2].startswith("last 4 blocks in BF16")
    assert re.search(r"on weights diverges at 0.51T", papers[1])
    assert papers[2].startswith("RHT on Wgrad")
    assert papers[3].startswith("weights, one 1x16 -1.14 > ")
    assert "one end each is kept: the last four blocks alone are last in Figure 8" in WORDS


def test_equal_forward_passes_begin_with_equal_losses():
    first = defaultdict(set)
    for run in (BF16, *RUNS):
        record = read_record(RECORDED / "runs" / run / "0.json.xz")
        forward = [line for line in record["done"]["precision"] if line["gemm"] == "fprop"]
        first[str(forward)].add(record["train"]["loss"][0])
    assert [len(found) for found in first.values()] == [1] * len(first)
    assert len(set.union(*first.values())) == len(first) < len(RUNS), "and only these"
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
        for step, gap in gaps(run, BF16, "validation").items()
        if start < step / STEPS < end
    ]
    assert f"gaps down to {min(stretch):.1f}," in WORDS
    assert min(stretch) == min(min(gaps(run, BF16, "validation").values()) for run in RUNS)
    for run, base in (("12b_nvfp4", "12b_fp8"), ("8b_nvfp4", "8b_bf16"), ("8b_mxfp4", "8b_bf16")):
        gap = gaps(run, base, "validation")
        assert 3.2 < losses(base, "validation")[min(gap, key=gap.__getitem__)] < 4.2, "as the dips do"
    small, medium, large = (falls(run) for run in (BF16, "8b_bf16", "12b_fp8"))
    assert f"BF16's loss falls by {small:.4f} nats a million tokens" in WORDS
    assert f"8B and 12B stand-ins by {medium:.4f} and {large:.4f}." in WORDS


def test_a_delay_is_not_all_that_is_left():
    delays = {run: late(run, 3.2) for run in RUNS}
    some = {run: delay for run, delay in delays.items() if 1.75 < delay < 2.75}
    nearest = {run: -END[run] for run in some if END[run] > -1.3}
    rest = {run: -END[run] for run in some if END[run] < -1.3}
    assert (len(some), len(nearest), len(rest)) == (9, 4, 5)
    assert f"pass 3.2 between {min(some.values()):.1f}M and {max(some.values()):.1f}M tokens late" in WORDS
    final = losses(BF16, "validation")[STEPS]
    made = [100 * delay * falls(BF16) / final for delay in some.values()]
    assert f"at {falls(BF16):.4f} nats makes {span(made)}: four" in WORDS
    assert f"about as far behind ({span([*nearest.values()])}), five at {span([*rest.values()])}." in WORDS

    def correlation(loss: float) -> float:
        return -np.corrcoef([late(run, loss) for run in RUNS], [*END.values()])[0, 1]

    assert f"(correlation over the 13: {abs(correlation(4.0)):.1f})" in WORDS
    assert (
        f"at 3.0, or {100 * passes(BF16, 3.0):.0f} % of the horizon, nearly all ({correlation(3.0):.1f})"
        in WORDS
    )


def test_the_same_technique_gains_and_loses():
    """The two contrasts have four runs each: their standard deviation is twice that of a single run's end."""

    def gain(run: str, base: str) -> float:
        return END[f"1p2b_{run}"] - END[f"1p2b_{base}"]

    rht = gain("rht_wgrad", "last4"), gain("last4_2d_rht", "last4_2d")
    sr = gain("sr_gradients", "last4"), gain("last4_2d_rht_sr", "last4_2d_rht")
    read = {
        arm: float(re.search(rf"{re.escape(arm)} (-[\d.]+)", PAPER["C19"] + PAPER["C23"])[1])
        for arm in ("RHT on Wgrad", "no RHT", "+ RHT", "+ 2D weight scales")
    }
    paper = read["RHT on Wgrad"] - read["no RHT"], read["+ RHT"] - read["+ 2D weight scales"]
    assert (
        f"RHT on Wgrad gains {rht[0]:.2f} without 2D scales and loses {-rht[1]:.2f} with them "
        f"(the paper: gains {paper[0]:.2f} and {paper[1]:.2f})"
    ) in WORDS
    assert f"SR on gradients gains {sr[0]:.2f} alone and loses {-sr[1]:.2f} after both" in WORDS
    chance = mean(abs(first - second) / 2 for first, second in (rht, sr))
    assert f"would end off by {chance:.1f} (standard deviation) by chance" in WORDS


def paper_with_and_without_sr() -> pd.Series:
    """The paper's Figure 8: points of gap by which the run with SR lies before the one without, by 10^12 tokens."""
    table = pd.read_csv(ROOT / "paper_figures" / "fig8" / "paper.csv")
    without, with_it = (
        table[table["run"] == run].sort_values("tokens_trillions")
        for run in ("1p2b_last4_2d_rht", "1p2b_last4_2d_rht_sr")
    )
    at = with_it["tokens_trillions"].to_numpy()
    return pd.Series(
        with_it["value"] - np.interp(at, without["tokens_trillions"], without["value"])
    ).set_axis(at)


def test_what_sr_does_in_the_papers_figure_8():
    sr = paper_with_and_without_sr()
    early, end = sr[sr.index < 0.2].mean(), sr[sr.index > 0.95].mean()
    assert f"it loses {-early:.2f} up to 0.2T tokens" in WORDS
    assert f"gains {end:.2f} at the end" in WORDS
    assert f"{0.2e6 / horizon(BF16):,.0f}"[:-2] + "00 times this horizon" in WORDS


def test_the_seeds_take_the_minutes_that_a_plan_prints(tmp_path, capsys):
    freeze_all(load("proxy"), tmp_path)
    where = ["--frozen", str(tmp_path / "runs"), "--recorded", str(RECORDED.parent)]

    def minutes_of(*names: str) -> str:
        assert main([*where, "plan", "--gpus", "2", *names]) == 0
        last = capsys.readouterr().out.rstrip().splitlines()[-1]
        return f"{float(re.search(r'([0-9.]+) minutes', last)[1]):.0f}"

    runs = [f"{run}_seed{seed}" for seed in (2, 3) for run in (BF16, "1p2b_last4", "1p2b_last4_2d_rht_sr")]
    minutes = minutes_of(*runs)
    assert (
        f"take {minutes} minutes on two GPUs (in the lease `small_3`), those of Figure 14's two runs "
        f"{minutes_of('small_4')} (`small_4`)." in WORDS
    )
    page = " ".join((ROOT / "docs" / "campaign.md").read_text(encoding="utf-8").split())
    assert f"`start {' '.join(runs)}` ({minutes} minutes on two GPUs)" in page
    assert f"ends differ by up to {max(END.values()) - min(END.values()):.1f} points" in page
