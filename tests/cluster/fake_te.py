"""Stand-ins for megatron-core's layers and Transformer Engine's modules and quantisers, under their own names."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch

from repro.cluster import quantizers
from repro.cluster.precision import LINEARS


class NVFP4Quantizer:
    row_scaled_nvfp4 = False
    nvfp4_use_4over6 = False

    def __init__(self, *, with_rht=False, with_2d_quantization=False, stochastic_rounding=False, sign_mask=1):
        self.with_rht, self.with_2d_quantization = with_rht, with_2d_quantization
        self.stochastic_rounding = stochastic_rounding
        self.rht_matrix_random_sign_mask_t = sign_mask


class Float8BlockQuantizer:
    def __init__(self, dimensions, element="kFloat8E4M3", *, force_pow_2_scales=True):
        self.block_scaling_dim, self.dtype = dimensions, SimpleNamespace(name=element)
        self.force_pow_2_scales = force_pow_2_scales


class IdentityQuantizer:
    pass


class Quantizer:
    """The part of TE's base class that matters."""

    def __init__(self, *, rowwise, columnwise):
        self.rowwise_usage, self.columnwise_usage, self.internal = rowwise, columnwise, False

    def set_usage(self, *, rowwise=None, columnwise=None):
        self.rowwise_usage = self.rowwise_usage if rowwise is None else rowwise
        self.columnwise_usage = self.columnwise_usage if columnwise is None else columnwise

    def __call__(self, tensor):
        return self.quantize(tensor)


class QuantizedTensorStorage:
    pass


EmulatedQuantizer, EmulatedTensor = quantizers.make_classes(Quantizer, QuantizedTensorStorage)


def native(recipe_switches):
    """The three quantisers that NVFP4BlockScaling makes: {"rht": bool, "sr": bool, "2d": bool}."""
    return {
        "input": NVFP4Quantizer(with_rht=recipe_switches["rht"]),
        "weight": NVFP4Quantizer(with_2d_quantization=recipe_switches["2d"]),
        "grad_output": NVFP4Quantizer(
            with_rht=recipe_switches["rht"], stochastic_rounding=recipe_switches["sr"]
        ),
    }


class Linear:
    """A TE linear module: quantisers appear when its metadata is made under an autocast."""

    fuse_wgrad_accumulation = False

    def __init__(self, state):
        self._state, self.name, self.fp8 = state, None, False
        self.quantizers, self.fp8_meta = {}, {}

    def init_fp8_metadata(self, num_gemms):
        assert num_gemms == 1
        self.fp8 = self._state["quantisers"] is not None
        if self.fp8:
            made = self._state["quantisers"](self.name)
            self.quantizers = {
                "scaling_fwd": [made["input"], made["weight"], IdentityQuantizer()],
                "scaling_bwd": [made["grad_output"], IdentityQuantizer()],
            }
            self.fp8_meta = {"recipe": self._state["recipe"]}


class WeightedLinear(torch.nn.Linear):
    """One with its weights, outside the layers of a pattern."""

    init_fp8_metadata, quantizers = None, ()


class Layer:
    def __init__(self, number, modules):
        self.layer_number, self._modules = number, modules

    def get_submodule(self, path):
        if path not in self._modules:
            raise AttributeError(path)
        return self._modules[path]


class Model:
    """Layers of a pattern and the context that megatron-core enters: quantised but for the first and last layers."""

    def __init__(self, spec, make_quantisers, *, first=0, last=0, override=None):
        self.state = {"quantisers": None, "recipe": SimpleNamespace(backward_override=override)}
        self._make, self._first, self._last, self._num = make_quantisers, first, last, len(spec.pattern)
        self.layers = [
            Layer(number + 1, {path: Linear(self.state) for path, _ in LINEARS[symbol]})
            for number, symbol in enumerate(spec.pattern)
        ]

    @contextmanager
    def context(self, index):
        in_bf16 = index < self._first or index >= self._num - self._last
        self.state["quantisers"] = None if in_bf16 else self._make
        yield
        self.state["quantisers"] = None
