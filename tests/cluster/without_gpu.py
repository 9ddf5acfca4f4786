"""Runs a command of the cluster backend without a GPU: megatron-core's and Transformer Engine's Python on a CPU.

    python tests/cluster/without_gpu.py -m repro.cluster RUN_YAML ...        as python's own words

What is real: megatron-core 0.19's entry point, loop, optimizer, checkpoints and model; Transformer Engine 2.20's
linear layers, autocast, recipes and CustomRecipe path. What stands in: the device (tensors asked for on "cuda" lie on
the CPU), gloo's collectives, and what has GPU kernels alone: BF16 products, RMSNorm, Adam and multi-tensor
operations of Transformer Engine, megatron-core's attention core and Mamba's scan, each by plain PyTorch with the same
function. So it shows that everything is called, saved and read back as it must be; not what a GPU computes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import runpy
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

#: Options of megatron-core whose defaults are GPU kernels without a Python twin.
_WORDS = ("--no-persist-layer-norm", "--no-masked-softmax-fusion", "--no-rope-fusion", "--num-workers", "0")
_CPU = torch.device("cpu")
#: Of the card that the CPU stands in for: 10.0 builds what is native on Blackwell, which cannot run here.
CAPABILITY_VARIABLE = "CPU_STANDS_FOR_CAPABILITY"


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return device == 0 if isinstance(device, int) else isinstance(device, str) and device.startswith("cuda")


class _OnTheCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = _CPU
        if getattr(func, "__name__", "") == "to":
            args = tuple(_CPU if isinstance(a, (str, torch.device)) and _is_cuda(a) else a for a in args)
        return func(*args, **kwargs)


class _Nothing:
    """A stream, an event, the handle of a collective: all done already."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def query(self):
        return True


def _device() -> None:
    cuda = torch.cuda
    capability = tuple(map(int, os.environ.get(CAPABILITY_VARIABLE, "9.0").split(".")))
    constant = {
        "is_available": True,
        "device_count": 1,
        "current_device": _CPU,
        "get_device_name": "NVIDIA H200 (a CPU stands in)",
        "get_device_capability": capability,
        "get_device_properties": SimpleNamespace(
            major=capability[0], minor=capability[1], total_memory=1 << 37, name="H200"
        ),
        "is_current_stream_capturing": False,
        "memory_stats": defaultdict(int),
    }
    constant |= dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), 0)
    constant |= dict.fromkeys(("max_memory_reserved",), 0)
    constant |= dict.fromkeys(
        (
            "set_device",
            "synchronize",
            "empty_cache",
            "reset_peak_memory_stats",
            "manual_seed",
            "_lazy_init",
            "init",
        )
    )
    constant |= dict.fromkeys(("current_stream", "default_stream"), _Nothing())
    constant["stream"] = contextlib.nullcontext()
    for name, value in constant.items():
        setattr(cuda, name, lambda *args, value=value, **kwargs: value)
    cuda.Stream = cuda.Event = _Nothing
    cuda.device = type("device", (contextlib.nullcontext,), {})
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    for owner in (torch.Tensor, torch.nn.Module):
        owner.cuda = lambda self, *args, **kwargs: self
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.pin_memory = lambda self, *args: self
    torch.optim.Optimizer._accelerator_graph_capture_health_check = lambda self: None
    of_cpu = torch.Tensor.type  # megatron-core tells parameters' dtypes by "torch.cuda.BFloat16Tensor"

    def type_name(self, *args, **kwargs):
        if args or kwargs:
            return of_cpu(self, *args, **kwargs)
        return of_cpu(self).replace("torch.cuda.", "torch.").replace("torch.", "torch.cuda.")

    torch.Tensor.type = type_name


def _collectives() -> None:
    dist = torch.distributed

    def with_gloo(original):
        def started(*args, **kwargs):
            for key in ("device_id", "pg_options"):
                kwargs.pop(key, None)
            return original(*args, **{**kwargs, "backend": "gloo"})

        return started

    dist.init_process_group, dist.new_group = map(with_gloo, (dist.init_process_group, dist.new_group))

    def reduce_scatter(out, given, op=dist.ReduceOp.SUM, group=None, async_op=False):
        assert op == dist.ReduceOp.SUM
        whole, size = given.detach().clone(), dist.get_world_size(group)
        (group or dist.group.WORLD).allreduce(
            [whole]
        ).wait()  # dist.all_reduce would wait for other calls to join
        out.view(-1).copy_(whole.view(size, -1)[dist.get_rank(group)])
        return _Nothing()

    def all_gather(out, given, group=None, async_op=False):
        size = dist.get_world_size(group)
        parts = [torch.empty_like(given).view(-1) for _ in range(size)]
        dist.all_gather(parts, given.detach().clone().view(-1), group=group)
        out.view(-1).copy_(torch.cat(parts))
        return _Nothing()

    dist.reduce_scatter_tensor = dist._reduce_scatter_base = reduce_scatter
    dist.all_gather_into_tensor = dist._all_gather_base = all_gather


class _Adam(torch.optim.Optimizer):
    """AdamW with the state of Transformer Engine's FusedAdam: moments a parameter, the step a group."""

    def __init__(self, params, lr, weight_decay, betas, eps, adam_w_mode, **rest):
        assert adam_w_mode
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = step = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                grad = p.grad if p.grad is not None else p.decoupled_grad
                state = self.state[p]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(p))
                state["exp_avg"].lerp_(grad, 1 - beta1)
                state["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
                root = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * state["exp_avg"] / (1 - beta1**step) / root)


def _transformer_engine() -> None:
    import transformer_engine.pytorch.module._common as common
    import transformer_engine.pytorch.module.base as base
    import transformer_engine.pytorch.module.layernorm_linear as layernorm_linear
    import transformer_engine.pytorch.module.linear as linear
    import transformer_engine_torch as compiled
    from transformer_engine.pytorch.cpp_extensions.gemm import is_custom

    module = base.TransformerEngineBaseModule
    text = textwrap.dedent(inspect.getsource(module.prepare_forward)).replace("not inp.is_cuda", "False")
    exec(text[text.index("def ") :], base.__dict__)
    module.prepare_forward = base.__dict__["prepare_forward"]
    real = linear.general_gemm

    def gemm(a, b, out_dtype=None, layout="TN", out=None, accumulate=False, **rest):
        if is_custom(a) or is_custom(b):
            return real(a, b, out_dtype=out_dtype, layout=layout, out=out, accumulate=accumulate, **rest)
        left, right = b.reshape(-1, b.shape[-1]), a.reshape(-1, a.shape[-1])
        product = {
            "TN": lambda: left @ right.t(),
            "NN": lambda: left @ right,
            "NT": lambda: left.t() @ right,
        }[layout]()
        product = product if layout == "NT" else product.view(*b.shape[:-1], -1)
        product = product if out_dtype is None else product.to(out_dtype)
        if out is not None:
            product = out.copy_(out + product if accumulate else product)
        return product, None, None, None

    linear.general_gemm = layernorm_linear.general_gemm = gemm

    def rmsnorm(x, weight, eps, out, quantizer, *rest):
        assert quantizer is None
        rsigma = torch.rsqrt(x.float().square().mean(-1) + eps)
        return (x.float() * rsigma[..., None] * weight.float()).to(x.dtype), None, rsigma

    def rmsnorm_backward(g, x, rsigma, weight, *rest):
        x, rsigma = x.view(g.shape).float(), rsigma.view(*g.shape[:-1], 1)
        normed, scaled = x * rsigma, g.float() * weight.float()
        dx = rsigma * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
        return dx.to(g.dtype), (g.float() * normed).flatten(0, -2).sum(0).to(weight.dtype)

    compiled.rmsnorm_fwd, compiled.rmsnorm_bwd = rmsnorm, rmsnorm_backward
    common._get_normalization_func = lambda name, forward: rmsnorm if forward else rmsnorm_backward


def _megatron() -> None:
    import megatron.core.models.hybrid.hybrid_block as hybrid_block
    import megatron.core.models.hybrid.hybrid_layer_specs as specs
    import megatron.core.optimizer as optimizer
    import megatron.core.optimizer.clip_grads as clip_grads
    import megatron.core.ssm.mamba_mixer as mamba_mixer
    import megatron.core.tensor_parallel.random as random
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    from repro.models.ssd import chunked_scan, split_projection

    silu = torch.nn.functional.silu
    hybrid_block.TENorm = WrappedTorchNorm
    attention = specs.hybrid_stack_spec.submodules.attention_layer.submodules.self_attention
    attention.submodules.core_attention = DotProductAttention
    optimizer.Adam = _Adam
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)

    def multi_tensor(operation, flags, lists, *args):
        if len(lists) == 1:
            return torch.sqrt(sum(t.float().square().sum() for t in lists[0])).view(1), None
        return [out.copy_(given * args[0]) for given, out in zip(*lists, strict=True)]

    clip_grads.multi_tensor_applier = multi_tensor

    def scan(x, dt, a, b, c, chunk_size, *, D, dt_bias, **rest):
        return chunked_scan(x, dt, a, b, c, D=D, dt_bias=dt_bias, chunk_size=chunk_size)

    def conv_and_scan(zxbcdt, weight, bias, dt_bias, a, *, D, chunk_size, headdim, ngroups, **rest):
        """The fused path: convolution, scan and gate in FP32, BF16 after the convolution and at the end."""
        heads, channels, kernel = len(D), *weight.shape
        z, xbc, dt = zxbcdt.split((heads * headdim, channels, heads), dim=-1)
        padded = torch.nn.functional.pad(xbc.float().transpose(1, 2), (kernel - 1, 0))
        conv = torch.nn.functional.conv1d(padded, weight.float()[:, None], bias.float(), groups=channels)
        given = silu(conv).transpose(1, 2).to(xbc.dtype).float()
        x, b, c = split_projection(given, heads, ngroups, (channels - heads * headdim) // (2 * ngroups))
        y = chunked_scan(x, dt.float(), a, b, c, D=D, dt_bias=dt_bias, chunk_size=chunk_size)
        return (y.flatten(-2) * silu(z.float())).to(zxbcdt.dtype)

    def gated_norm(self, x, z=None):
        gated = x.float() if z is None else x.float() * silu(z.float())
        gated = gated.unflatten(-1, (-1, self.group_size))
        normed = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + self.eps)
        return (normed.flatten(-2) * self.weight.float()).to(x.dtype)

    mamba_mixer.mamba_chunk_scan_combined = scan
    mamba_mixer.mamba_split_conv1d_scan_combined = conv_and_scan
    mamba_mixer.ExtendedRMSNorm.forward = gated_norm


def install() -> None:
    """To be called before megatron-core is imported; what is its own is replaced when it is configured."""
    _device()
    _collectives()
    from repro.cluster import entry

    original = entry.configure

    def configure(words):
        sys.argv = [sys.argv[0], *words]
        _transformer_engine()
        _megatron()
        return original([*words, *_WORDS])

    entry.configure = configure
    _OnTheCpu().__enter__()


def replace_kernels() -> None:
    """For what builds Transformer Engine's layers without megatron-core; nothing where there is a GPU."""
    if torch.cuda.current_device() == _CPU:
        _transformer_engine()


if __name__ == "__main__":
    install()
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")
