"""The README's table of the proxy tier: the paper's gaps beside the recorded ones, cell by cell."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from proxy_claims import HERE, PAPER, arms, drawn, number
from readme_text import ROOT, section
from recorded_runs import gaps

from repro.analysis.claims_file import load_claims


def at_87(run: str) -> str:
    """The paper's Figure 7 where its backward-only run and ours were validated last, over 2 % of the horizon."""
    table = pd.read_csv(ROOT / "paper_figures" / "fig7" / "paper.csv")
    near = table[(table["run"] == run) & table["tokens_trillions"].between(8.537, 8.737)]
    return f"{near['value'].mean():.2f}"


FIG4 = ("full method (goes on)", "without 2D scales", "last 4 blocks in BF16", "without RHT", "without SR")
FIG8 = ("last 4 blocks in BF16", "+ 2D weight scales", "+ RHT", "+ SR")
FIG10 = ("gradients", "backward", "activations", "weights")
FIG11 = ("RHT on Wgrad", "no RHT", "RHT on Dgrad", "RHT on Fprop")
FIG9 = ("last4", "first2_last2", "last2", "last1", "first4")
FIG14 = ("weights, one 1x16", "weights, 16x16", "weights, two 1x16")
ACTIVATIONS = ("activations, one 1x16", "activations, two 1x16")
BACKWARD, BOTH_99 = "BF16 backward from 82 %", "BF16 in both from 99 %"


def paper_end(figure: str, run: str) -> str:
    """The paper's gap to BF16 over the last 2 % of its horizon, from its losses; of a run that ends before, that."""
    table = pd.read_csv(ROOT / "paper_figures" / figure / "paper.csv").set_index("tokens_trillions")
    own, base = (table.loc[table["run"] == name, "value"] for name in (run, "1p2b_bf16"))
    if own.index.max() < base.index.max():
        return "diverges"
    own = own[own.index > 0.98]
    other = np.interp(own.index, base.index, base)
    return f"{(100 * (other - own) / other).mean():.2f}"


def paper_drawn(claim: str, key: str) -> str:
    """An end value that a claim's entry states of the paper."""
    return f"{load_claims(ROOT / 'configs' / 'claims.yaml')[claim].numbers['drawn'][key]:.2f}"


def at_the_end(run: str) -> str:
    """Gap of a run of the 1.2B stand-in to BF16 in its last validation."""
    return f"{gaps(run, '1p2b_bf16', 'validation')[1600]:.2f}"


EXPECTED = {
    "Figure 2": ([drawn("C5"), drawn("C6")], [number("C5"), number("C6")]),
    "Figure 7: at the end": (
        [drawn("C29"), drawn("C31"), arms(PAPER["C30"])[BOTH_99]],
        [number("C29"), number("C31"), arms(HERE["C30"])[BOTH_99]],
    ),
    "Figure 7: at 87 %": (
        [at_87("12b_switch_backward_82"), at_87("12b_nvfp4")],
        [arms(HERE["C32"])[BACKWARD], arms(HERE["C32"])["NVFP4 to the end"]],
    ),
    "Figure 4": ([arms(PAPER["C11"])[arm] for arm in FIG4], [arms(HERE["C11"])[arm] for arm in FIG4]),
    "Figure 6: to BF16": ([*arms(PAPER["C27"]).values()][:2], [*arms(HERE["C27"]).values()]),
    "Figure 6: tokens": (
        [PAPER["C28"].partition(" ")[0]],
        [HERE["C28"].partition(" ")[0]],
    ),
    "Figure 8": ([arms(PAPER["C19"])[arm] for arm in FIG8], [arms(HERE["C19"])[arm] for arm in FIG8]),
    "Figure 9": (
        [paper_end("fig9", f"1p2b_{blocks}") for blocks in FIG9],
        [at_the_end(f"1p2b_{blocks}") for blocks in FIG9],
    ),
    "Figure 10": (
        [paper_end("fig10", f"1p2b_sr_{where}") for where in FIG10],
        [at_the_end(f"1p2b_sr_{where}") for where in FIG10],
    ),
    "Figure 11": ([arms(PAPER["C23"])[arm] for arm in FIG11], [arms(HERE["C23"])[arm] for arm in FIG11]),
    "Figure 14: the same, only weights": tuple(
        [re.search(rf"{arm} ([+-][\d.]+)", text["C26"])[1] for arm in FIG14] for text in (PAPER, HERE)
    ),
    "Figure 14: the same, only activations": (
        [paper_drawn("C26", f"activations_{copies}") for copies in ("same", "different")],
        [re.search(rf"{arm} ([+-][\d.]+)", HERE["C26"])[1] for arm in ACTIVATIONS],
    ),
}


def test_every_row_of_the_table_holds_the_recorded_gaps_beside_the_papers():
    table = [
        line.strip("| ").split(" | ")
        for line in section("The proxy tier so far").splitlines()
        if line.startswith("| Figure")
    ]
    assert len(table) == len(EXPECTED)
    for head, (paper, here) in EXPECTED.items():
        (row,) = [row for row in table if row[0].startswith(head)]
        assert row[1:] == [" / ".join(paper), " / ".join(here)], head
