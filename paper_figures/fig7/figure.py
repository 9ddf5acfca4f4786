"""Figure 7 (Appendix D): BF16 for the last part of training. Claims C29, C30, C31, C31b, C32.

C31b is arithmetic: the three GEMMs of a linear layer cost the same (2 T N K each), so a third of the computation is
the forward pass, and BF16 there for the last 18 % is 6 %. The switch point is the frozen run's.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import orders, rules
from repro.analysis.arms import arm, arms, judge_order, noise_of, scale, stated_order
from repro.analysis.curve_figure import curve_figure
from repro.analysis.curves import curve_table, missing_runs, select
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict

BASELINE, MAIN = "12b_fp8", "12b_nvfp4"
BOTH, FORWARD, BACKWARD = "12b_switch_both_82", "12b_switch_forward_82", "12b_switch_backward_82"
LATE = "12b_switch_both_99"
# The part of the run that is drawn: before it there is one run, and Figure 2 shows that.
SPAN = (0.7, 1.0)
# Fprop, Dgrad and Wgrad of one linear layer.
NUM_GEMMS = 3


def data(results: Results) -> pd.DataFrame:
    """Validation losses and gaps to FP8; panel "switch" holds the token at which the forward-only run switches."""
    curves = curve_table(results, [MAIN, BOTH, FORWARD, BACKWARD, LATE], baseline=BASELINE, text="validation")
    frozen, horizon = results.frozen(FORWARD), results.frozen(FORWARD)["schedule"]["horizon_tokens"]
    start = frozen["schedule"]["start_tokens"]
    switch = {
        "panel": "switch", "run": FORWARD, "role": "run", "quantity": "switch", "text": "validation",
        "tokens": start, "fraction": start / horizon, "replica_of": FORWARD, "replica": 1, "paired": True,
        **results.meta(FORWARD),
    }  # fmt: skip
    return pd.concat([curves, pd.DataFrame([switch])], ignore_index=True)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    return curve_figure(table, paper, quantity="gap", span=SPAN)


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    noise = noise_of(table, paper)

    def number(claim: str, run: str, words: str) -> Verdict:
        return rules.value(
            paper.case(claim, scale(table, [run]), paper=words),
            [arm(table, run, paper.labels[run])],
            [paper.claims[claim].numbers["value"]],
            tolerance=paper.judge[claim]["tolerance"],
            noise=noise,
        )

    # The backward-only run is compared where it stops, not where the others end.
    stop = (
        None if BACKWARD in missing_runs(table) else float(select(table, BACKWARD, "gap")["fraction"].max())
    )
    return [
        number("C29", BOTH, "0.0 at the end (drawn +0.05)"),
        _last_per_cent(table, paper),
        number("C31", FORWARD, "-0.5 at the end (drawn -0.52)"),
        _share(table, paper),
        judge_order(table, paper, "C32", at=stop),
    ]


def _last_per_cent(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C30: switching in the last 1 % recovers more than half of NVFP4's gap to FP8, of a gap that is there.

    Half of the gap stands in the order as an arm of its own, seed by seed; it lies above NVFP4 where there is a gap.
    With one seed it borrows the noise of a whole gap.
    """
    rule, order = paper.judge["C30"], paper.claims["C30"].numbers["order"]
    found = arms(table, rule["arms"], paper.labels)
    nvfp4 = found["nvfp4"]
    found["half"] = replace(
        nvfp4,
        name="half of NVFP4's gap",
        value=None if nvfp4.value is None else nvfp4.value / 2,
        by_seed={seed: gap / 2 for seed, gap in nvfp4.by_seed.items()},
        every_seed={seed: gap / 2 for seed, gap in nvfp4.every_seed.items()},
    )
    stated = stated_order([[key] for key in order], rule, "C30", paper)
    return orders.order(
        paper.case("C30", scale(table, rule["arms"].values()), paper=stated),
        found,
        [[key] for key in (*order[:-1], "half", order[-1])],
        equal_within=None,
        noise=noise_of(table, paper),
    )


def _share(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C31b: share of the computation that a BF16 forward pass from the switch on makes."""
    switch = float(table.loc[table["quantity"] == "switch", "fraction"].iloc[0])
    share = (1 - switch) / NUM_GEMMS
    stated = paper.claims["C31b"].numbers["value"]
    return rules.exact(
        paper.claims["C31b"],
        element=paper.element,
        tier=str(table["tier"].iloc[0]),
        paper=f"about {stated:.0%}",
        ours=f"{100 * share:.2f} % = {100 * (1 - switch):.1f} % / {NUM_GEMMS}",
        holds=abs(share - stated) <= paper.judge["C31b"]["tolerance"],
        reason="one of three GEMMs of equal cost, from the switch of the frozen run on",
    )
