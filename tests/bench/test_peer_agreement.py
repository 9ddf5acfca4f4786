"""How other packages' results are compared: with this project's own arithmetic in the place of a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from peer_adapters import PEERS, Prepared
from peer_agreement import compare, samples, spec_of

from repro.numerics.quantize import quantize

JOB = "nvfp4/1x16/rne"
TENSORS = samples(torch.device("cpu"))[:2]


def _package(change=lambda codes, scales: (codes, scales), **options) -> Prepared:
    return Prepared(
        lambda x: quantize(x, spec_of(JOB, **options)),
        lambda made: made.dequantize().bfloat16(),
        lambda made: change(made.codes.clone(), made.scales.clone()),
    )


def test_the_same_arithmetic_gives_the_same_codes_and_scales() -> None:
    found = compare(_package(), JOB, TENSORS)
    assert found["verdict"] == "same codes and scales"
    assert found["codes"] == 2 * 256 * 1024


def test_the_papers_order_is_recognised() -> None:
    found = compare(_package(scale_order="paper"), JOB, samples(torch.device("cpu"))[:4])
    assert found["scales_differ"] == found["scales_in_papers_order"] > 0
    assert "as the paper's order gives" in found["verdict"]


def test_scales_raised_from_zero_and_signs_of_zero_are_told_apart() -> None:
    def raise_scales(codes, scales):
        return codes, scales.clamp(min=8)

    def lose_signs(codes, scales):
        return torch.where(codes == 8, 0, codes), scales

    raised = compare(_package(raise_scales), JOB, TENSORS)
    assert raised["scales_differ"] == raised["scales_raised"] > 0
    assert raised["codes_differ"] == 0
    signs = compare(_package(lose_signs), JOB, TENSORS)
    assert signs["scales_differ"] == 0
    assert signs["codes_differ"] == signs["codes_differ_in_sign_of_zero"] > 0


def test_a_package_without_codes_is_compared_by_values() -> None:
    package = Prepared(lambda x: quantize(x, spec_of(JOB)).dequantize().bfloat16(), lambda y: y)
    assert compare(package, JOB, TENSORS)["verdict"] == "same values"
    package = Prepared(lambda x: x, lambda y: y)
    assert "values differ" in compare(package, JOB, TENSORS)["verdict"]


@pytest.mark.parametrize("job", sorted({peer.job for peer in PEERS}))
def test_every_job_is_one_that_this_project_can_do(job: str) -> None:
    assert "x".join(map(str, spec_of(job).tile)) == job.split("/")[1]
