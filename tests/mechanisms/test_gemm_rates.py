"""The benchmark behind Table 1: what it reports, not how fast this machine is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from repro.mechanisms import gemm_rates


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_rates, "SECONDS_PER_FORMAT", 0.0)
    monkeypatch.setattr(gemm_rates, "CPU_SHAPE", (64, 96, 128))


def test_every_format_is_measured_or_says_what_it_needs(tmp_path: Path) -> None:
    out = tmp_path / "bench" / "gemm.json"
    assert gemm_rates.main(["--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["shape"] == {"m": 64, "n": 96, "k": 128}
    for rate in report["rates"]:
        if rate["kind"] == "absent":
            assert rate["tflops"] is None, rate
            assert rate["note"], f"{rate['format']} is absent without a reason"
        else:
            assert rate["tflops"] == pytest.approx(2 * 64 * 96 * 128 / rate["seconds"] / 1e12), rate
    names = {(rate["format"], rate["kind"]) for rate in report["rates"]}
    assert {("bf16", "native"), ("fp32", "native"), ("nvfp4", "emulated"), ("mxfp4", "emulated")} <= names


def test_stored_bytes_are_four_and_a_half_bits_and_one_fp32_for_nvfp4() -> None:
    by_format = {record["format"]: record for record in gemm_rates.storage(torch.randn(64, 256))}
    num_values = 64 * 256
    assert by_format["nvfp4"]["bytes"] == num_values * 4.5 / 8 + 4
    assert by_format["mxfp4"]["bytes"] == num_values * 4.25 / 8
    assert by_format["fp8_block"]["bytes"] == num_values * (8 + 32 / 128) / 8
    assert by_format["nvfp4"]["over_fp8"] == pytest.approx(4.5 / 8.25, rel=1e-3)


def test_emulated_product_of_operands_on_the_grid_is_the_product() -> None:
    x = torch.tensor([6.0, 3.0, -1.5, 0.5]).repeat(32, 16).bfloat16()
    for name in ("nvfp4", "mxfp4", "mxfp8"):
        form = gemm_rates.BLOCK_FORMATS[name]
        got = gemm_rates.emulated_product(x, x, form)
        # Not bit for bit: NVFP4's two FP32 tensor scales each round once.
        torch.testing.assert_close(got, x.float() @ x.float().t(), rtol=4e-7, atol=0, msg=name)


def test_a_product_that_the_library_refuses_is_absent_in_its_own_words() -> None:
    def refuse() -> None:
        raise RuntimeError("no FP8 here\nstack")

    record = gemm_rates._record("fp8_e4m3", "native", refuse, torch.ones(2, 2), torch.ones(2, 2))
    assert (record["kind"], record["note"]) == ("absent", "no FP8 here")


def test_a_folder_that_cannot_be_made_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert gemm_rates.main(["--out", str(tmp_path / "file" / "gemm.json")]) == 2
    assert "gemm.json: cannot be written" in capsys.readouterr().err
