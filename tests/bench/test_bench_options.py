"""What commands that measure refuse."""

from __future__ import annotations

import pytest
import torch

from repro.bench.options import check_batch, check_gpu, device_named


def test_a_batch_of_whole_micro_batches_is_taken() -> None:
    check_batch(128, [16, 32, 64, 128])
    with pytest.raises(
        ValueError, match=r"--batch 128 is no multiple of --micro 48: 32 of .* --batch 144 is one"
    ):
        check_batch(128, [16, 48])


def test_a_device_is_named_as_torch_names_it() -> None:
    assert device_named("cpu") == torch.device("cpu")
    assert device_named("cuda:1") == torch.device("cuda", 1)
    for words in ("foo", "", "meta", "cuda:x", "gpu"):
        with pytest.raises(ValueError, match=f"^--device {words!r}: cpu, cuda or cuda:N$"):
            device_named(words)


def test_what_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA GPU here, and tiles are measured on one"):
        check_gpu("tiles")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_gpu("tiles")
