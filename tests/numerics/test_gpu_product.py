"""Products scaled on the device: exact sums, one rounding, every orientation; and what goes another way."""

from __future__ import annotations

import logging

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from repro.numerics.gpu import product

pytestmark = pytest.mark.gpu
ALPHA = torch.tensor(0.0123456789)


def integers(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).to(torch.bfloat16).cuda()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(128, 256, 512), (4096, 64, 96), (16, 16, 8192), (2048, 1024, 1000)])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_sums_are_scaled_in_fp32_and_rounded_once(dtype, shape, transposed):
    """Sums of integers are exact in FP32 in any order, so the result has one right value."""
    m, n, k = shape
    a = integers((k, m), 1).t() if "a" in transposed else integers((m, k), 1)
    b = integers((n, k), 2).t() if "b" in transposed else integers((k, n), 2)
    alpha = ALPHA.cuda()
    ours = product.scaled_product(a, b, alpha, dtype=dtype)
    sums = a.double() @ b.double()
    assert torch.equal(ours, (sums.float() * alpha).to(dtype))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one_multiplies_its_tensors():
    assert torch.cuda.current_device() == 0
    a, b, alpha = (t.to("cuda:1") for t in (integers((64, 128), 9), integers((128, 96), 10), ALPHA))
    ours = product.scaled_product(a, b, alpha, dtype=torch.float32)
    assert ours.device == a.device
    assert torch.equal(ours, (a.float() @ b.float()) * alpha)


def test_rows_may_lie_apart():
    a = integers((64, 256), 3)[:, :128]
    b = integers((128, 96), 4)
    ours = product.scaled_product(a, b, ALPHA.cuda(), dtype=torch.float32)
    assert torch.equal(ours, (a.float() @ b.float()) * ALPHA.cuda())


@pytest.mark.parametrize("first", [8, 24, 64])
def test_operands_may_begin_anywhere_at_16_bytes(first):
    a = integers((256, 512 + first), 11)[:, first:]
    b = integers((512 * 128 + first,), 12)[first:].view(512, 128)
    ours = product.scaled_product(a, b, ALPHA.cuda(), dtype=torch.float32)
    assert torch.equal(ours, (a.double() @ b.double()).float() * ALPHA.cuda())


def test_nan_and_infinity_come_through():
    a, b = integers((32, 64), 5), integers((64, 32), 6)
    a[3, 5] = float("nan")
    a[4, 5] = float("inf")
    ours = product.scaled_product(a, b, ALPHA.cuda(), dtype=torch.bfloat16)
    assert ours[3].isnan().all()
    assert not ours[4].isfinite().any() or (b[5] == 0).any()
    assert ours[5].isfinite().all()


def test_what_it_does_not_take_is_said_once(caplog):
    product._say_unscaled.cache_clear()
    a = integers((64, 256), 7)[:, ::2]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert (
                product.scaled_product(a, integers((128, 16), 8), ALPHA.cuda(), dtype=torch.float32) is None
            )
    assert len(caplog.records) == 1
