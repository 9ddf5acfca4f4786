"""On a GPU: the PyTorch scan there, and mamba_ssm's kernels when they can be imported, against the CPU in float64."""

import pytest
import torch

from repro.models import ssd

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

HEADS, GROUPS, STATE, TOKENS = 8, 2, 32, 300


def inputs(dtype, device, *, head_dim=48):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, dtype=dtype):
        return torch.randn(*shape, generator=generator).to(dtype).to(device).requires_grad_()

    vector = {"D": normal(HEADS, dtype=torch.float32), "dt_bias": normal(HEADS, dtype=torch.float32)}
    A = (-normal(HEADS, dtype=torch.float32).detach().exp()).requires_grad_()
    return {
        "x": normal(2, TOKENS, HEADS, head_dim),
        "dt": normal(2, TOKENS, HEADS),
        "A": A,
        "B": normal(2, TOKENS, GROUPS, STATE),
        "C": normal(2, TOKENS, GROUPS, STATE),
        **vector,
    }


def scan_of_projection(x, dt, A, B, C, **others):
    """`ssd_scan` from x, B and C apart."""
    xBC = torch.cat([t.flatten(2) for t in (x, B, C)], dim=-1)
    return ssd.ssd_scan(xBC, dt, A, num_groups=B.shape[2], state_size=B.shape[3], **others)


def output_and_gradients(scan, tensors):
    y = scan(**tensors, chunk_size=64)
    weight = torch.linspace(-1.0, 2.0, y.numel(), dtype=torch.float32, device=y.device).view_as(y).to(y.dtype)
    gradients = torch.autograd.grad((y * weight).sum(), list(tensors.values()))
    return {"y": y.detach()} | dict(zip(tensors, gradients, strict=True))


def exact(tensors):
    wide = {name: t.detach().cpu().double().requires_grad_() for name, t in tensors.items()}
    return output_and_gradients(ssd.chunked_scan, wide)


def assert_close(found, expected, tolerance):
    for name, value in expected.items():
        difference = (found[name].cpu().double() - value).norm() / value.norm()
        assert difference < tolerance, f"{name}: relative distance {difference:.3g}"


def test_pytorch_scan_on_the_gpu_equals_the_cpu():
    """FP32; sums over 300 tokens and exponents up to some hundred, each rounded at 6e-8."""
    tensors = inputs(torch.float32, "cuda")
    assert_close(output_and_gradients(ssd.chunked_scan, tensors), exact(tensors), tolerance=5e-5)


@pytest.mark.skipif(ssd._mamba_ssm_kernel() is None, reason="mamba_ssm can't be imported")
@pytest.mark.parametrize("head_dim", [32, 48])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-3), (torch.bfloat16, 3e-2)])
def test_mamba_ssm_runs_on_the_gpu_and_computes_the_same_scan(dtype, tolerance, head_dim, caplog):
    """Its products are TF32 (11 bits) or BF16 (8 bits), with sums of some hundred terms: hence the tolerances."""
    ssd._say_once.cache_clear()
    ssd._mamba_ssm_kernel.cache_clear()
    tensors = inputs(dtype, "cuda", head_dim=head_dim)
    with caplog.at_level("INFO", logger="repro.models.ssd"):
        found = output_and_gradients(scan_of_projection, tensors)
    assert [r.getMessage() for r in caplog.records] == ["Mamba-2 scan: mamba_ssm's Triton kernels"]
    assert_close(found, exact(tensors), tolerance)


@pytest.mark.skipif(ssd._mamba_ssm_kernel() is None, reason="mamba_ssm can't be imported")
def test_a_sequence_gets_the_same_bits_in_every_batch_and_every_time():
    tensors = inputs(torch.bfloat16, "cuda")
    both, again = (output_and_gradients(scan_of_projection, tensors) for _ in range(2))
    for name, value in both.items():
        assert torch.equal(value, again[name]), name
    first = {name: t[:1] if t.dim() > 1 else t for name, t in tensors.items()}
    assert torch.equal(scan_of_projection(**first, chunk_size=64)[0], both["y"][0])


@pytest.mark.skipif(ssd._mamba_ssm_kernel() is None, reason="mamba_ssm can't be imported")
def test_another_version_of_mamba_ssm_is_called_as_it_comes(monkeypatch, caplog):
    from repro.models import ssd_launch

    ssd._mamba_ssm_kernel.cache_clear()
    ssd_launch.load_kernels.cache_clear()
    monkeypatch.setattr(ssd_launch, "VERSION", "0.0")
    tensors = inputs(torch.float32, "cuda")
    with caplog.at_level("INFO", logger="repro.models.ssd"):
        found = output_and_gradients(scan_of_projection, tensors)
    ssd._mamba_ssm_kernel.cache_clear()
    assert "mamba_ssm as it comes" in caplog.text
    assert_close(found, exact(tensors), 3e-3)
