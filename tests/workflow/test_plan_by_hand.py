"""The paper tier's plan against sums done by hand from the paper's own numbers (Appendix A, Tables 3, 4 and 5).

6ND takes every parameter to multiply. The plan leaves out the input embedding (a look-up) and adds causal attention
and the Mamba-2 scan, which work on tokens and have no parameters: both are done by hand here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.cluster.paths import emulated_runs
from repro.experiments import elements, load
from repro.experiments.cost import cost_of, total, with_lineage

ROOT = Path(__file__).resolve().parents[2]
SEQUENCE, VOCABULARY, STATE, GROUPS, CHUNK = 8192, 131072, 128, 8, 128


@pytest.fixture(scope="module")
def paper():
    return load("paper", configs_dir=ROOT / "configs")


def by_hand(parameters: float, tokens: float, *, hidden: int, attention: int, mamba: int) -> float:
    """FLOPs: 6ND without the embedding, QK^T and AV over half the sequence, Mamba's inner size of 2 x hidden."""
    products = 6 * (parameters - VOCABULARY * hidden)
    half_sequence = 3 * 2 * (2 * hidden * SEQUENCE / 2) * attention
    scan = 3 * 2 * (CHUNK * (GROUPS * STATE + 2 * hidden) + 2 * 2 * hidden * STATE) * mamba
    return (products + half_sequence + scan) * tokens


# run, parameters, tokens, shape of the model, sustained FLOP/s of its products, share of 6ND
RUNS = [
    ("12b_nvfp4", 12.31e9, 10e12, {"hidden": 5120, "attention": 6, "mamba": 28}, 1.7e15, 0.98),
    ("12b_fp8", 12.31e9, 10e12, {"hidden": 5120, "attention": 6, "mamba": 28}, 1.4e15, 0.98),
    ("8b_bf16", 8.08e9, 1e12, {"hidden": 4096, "attention": 4, "mamba": 24}, 1.0e15, 0.96),
    ("8b_mxfp4_1p25x", 8.08e9, 1.25e12, {"hidden": 4096, "attention": 4, "mamba": 24}, 0.8e15, 0.96),
    ("8b_mxfp4_1p5x", 8.08e9, 1.5e12, {"hidden": 4096, "attention": 4, "mamba": 24}, 0.8e15, 0.96),
    ("1p2b_bf16", 1.292e9, 1e12, {"hidden": 2048, "attention": 20, "mamba": 0}, 1.0e15, 1.05),
    ("1p2b_last4", 1.292e9, 1e12, {"hidden": 2048, "attention": 20, "mamba": 0}, 1.7e15, 1.05),
]


@pytest.mark.parametrize(
    ("run", "parameters", "tokens", "shape", "rate", "share"), RUNS, ids=[row[0] for row in RUNS]
)
def test_flops_and_gpu_hours(paper, run, parameters, tokens, shape, rate, share):
    cost = cost_of(paper, paper.run(run), emulated=emulated_runs(paper))
    assert cost.tokens == pytest.approx(tokens, rel=1e-5)
    assert cost.flops == pytest.approx(by_hand(parameters, tokens, **shape), rel=0.002)
    assert cost.flops == pytest.approx(share * 6 * parameters * tokens, rel=0.01)
    assert cost.device_hours == pytest.approx(cost.flops / rate / 3600)


def test_forks_cost_the_tokens_behind_the_fork(paper):
    """Appendix D and Figure 4: from 3.43T to 3.94T, from 8.2T to 10T or 8.84T, from 9.9T to 10T."""
    for run, tokens in (
        ("12b_without_rht", 0.51e12),
        ("12b_switch_both_82", 1.8e12),
        ("12b_switch_backward_82", 0.64e12),
        ("12b_switch_both_99", 0.1e12),
    ):
        assert cost_of(paper, paper.run(run)).tokens == pytest.approx(tokens, rel=1e-4), run


def test_checkpoint_bytes(paper):
    """A 12B checkpoint: 12.31e9 x (4 + 4 + 4 + 2) bytes = 172 GB. Figure 3 keeps 21, then the end and the newest two.

    12b_nvfp4 keeps three more: the tokens at which others fork (3.43T, 8.2T, 9.9T).
    """
    each = 12.31e9 * 14
    assert cost_of(paper, paper.run("12b_fp8")).checkpoint_bytes == pytest.approx(24 * each, rel=0.001)
    assert cost_of(paper, paper.run("12b_nvfp4")).checkpoint_bytes == pytest.approx(27 * each, rel=0.001)
    assert cost_of(paper, paper.run("12b_without_sr")).checkpoint_bytes == pytest.approx(3 * each, rel=0.001)


def test_totals_of_everything_and_of_one_figure(paper):
    """Tokens, in T. 12B: 2 whole runs, 10 forks of 0.51, switches of 1.8, 1.8, 0.64, 0.1. 8B: 5.75. 1.2B: 28 x 1."""
    emulated = emulated_runs(paper)
    everything = total(paper, paper.runs, emulated=emulated)
    assert everything.tokens == pytest.approx((20 + 10 * 0.51 + 4.34 + 5.75 + 28) * 1e12, rel=1e-4)
    found = elements.load_elements(ROOT / "paper_figures")
    names = with_lineage(paper, elements.runs_of(found["fig10"], paper))
    fig10 = total(paper, names, emulated=emulated)
    assert fig10.tokens == pytest.approx(6e12, rel=1e-5)
    # One run in BF16, two natively in NVFP4 (base, SR on gradients), three emulated (SR elsewhere).
    flops = by_hand(1.292e9, 1e12, hidden=2048, attention=20, mamba=0)
    assert fig10.device_hours == pytest.approx(
        flops * (1 / 1.0e15 + 2 / 1.7e15 + 3 / 0.8e15) / 3600, rel=0.002
    )
