"""Table 1 through Transformer Engine: what a card can do has a rate, what it can't has a reason."""

import importlib.util
import sys

import pytest
import torch

from repro.cluster import gemm_rates

SHAPE = (256, 512, 1024)


def test_formats_that_a_card_lacks_are_told_with_the_librarys_reason(monkeypatch):
    seconds = {"bf16": 4e-3, "fp8_e4m3": 2e-3}
    fake = type("te", (), {})
    for name in ("is_fp8_block_scaling_available", "is_mxfp8_available", "is_nvfp4_available"):
        setattr(fake, name, staticmethod(lambda return_reason, name=name: (False, f"{name}: other card")))
    fake.is_fp8_available = staticmethod(lambda return_reason: (True, ""))
    monkeypatch.setitem(sys.modules, "transformer_engine", fake)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", fake)
    fake.pytorch = fake
    monkeypatch.setattr(
        gemm_rates,
        "_calls",
        lambda shape, recipe: ("bf16" if recipe is None else "fp8_e4m3", "whole"),
    )
    records = gemm_rates.rates(SHAPE, time=lambda call: seconds.get(call, 1.0))
    by_format = {record["format"]: record for record in records}
    assert list(by_format) == ["bf16", "fp8_e4m3", "fp8_block", "mxfp8", "nvfp4", "mxfp4"]
    assert by_format["fp8_e4m3"]["over_bf16"] == 2.0
    assert by_format["bf16"]["tflops"] == pytest.approx(2 * 256 * 512 * 1024 / 4e-3 / 1e12)
    assert by_format["nvfp4"]["note"] == "is_nvfp4_available: other card"
    assert "no such recipe" in by_format["mxfp4"]["note"]
    assert by_format["mxfp4"]["tflops"] is None


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("transformer_engine") is None,
    reason="needs a GPU and transformer-engine",
)
def test_rates_of_this_card():
    records = gemm_rates.rates((1024, 1024, 1024))
    assert records[0]["over_bf16"] == 1.0
    assert all(record["seconds"] or record["note"] for record in records)
