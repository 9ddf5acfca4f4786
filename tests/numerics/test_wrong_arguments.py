"""Wrong arguments of the entry points: refused when they are given, in one line that says what would do."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    SquaredRelu,
    SquaredReluGradient,
    block_format,
    make_operand,
    make_operand_pair,
    make_operand_reference,
    make_packed,
    make_packed_pair,
    pack,
    pack_codes,
    quantize,
    random_bits,
    seed_tensor,
    sign_vector,
    transform,
    unpack,
    unpack_codes,
)
from repro.numerics.formats import NVFP4

RNE, SR = QuantSpec(NVFP4, (1, 16)), QuantSpec(NVFP4, (1, 16), rounding="sr")
X = torch.ones(32, 32)
ROWS = CopyRequest(RNE, 1)

#: What takes a matrix, as a function of it.
CALLS = {
    "quantize": lambda x: quantize(x, RNE),
    "make_operand": lambda x: make_operand(x, RNE, along=1),
    "make_operand_reference": lambda x: make_operand_reference(x, RNE, along=1),
    "make_operand_pair": lambda x: make_operand_pair(x, ROWS, ROWS),
    "make_packed": lambda x: make_packed(x, RNE),
    "make_packed_pair": lambda x: make_packed_pair(x, ROWS, ROWS),
    "transform": lambda x: transform(x, 16, None, dim=1),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
@pytest.mark.parametrize(
    "x", [[[1.0, 2.0]], np.ones((16, 16), np.float32), None], ids=["list", "array", "None"]
)
def test_what_is_no_tensor_is_told_so(call, x):
    with pytest.raises(TypeError, match=f"torch tensor.*{type(x).__name__}"):
        call(x)


@every_call
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bool, torch.complex64])
def test_other_dtypes_are_named(call, dtype):
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=f"float32.*not {name}"):
        call(X.to(dtype))


@every_call
@pytest.mark.parametrize("shape", [(0, 32), (32, 0)])
def test_empty_tensors_are_refused_with_their_shape(call, shape):
    with pytest.raises(ValueError, match=rf"shape \({shape[0]}, {shape[1]}\)"):
        call(torch.empty(shape))


def test_a_transform_to_bf16_and_back_is_not_made_of_float16():
    """BF16 reaches further than FP16: the result would not be the numbers that were asked for."""
    for call in (
        lambda x: transform(x, 16, None, dim=1),
        lambda x: make_operand(x, RNE, along=1, hadamard=16),
    ):
        with pytest.raises(ValueError, match="float32 or bfloat16, not float16"):
            call(X.half())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NVFP4, (2, 16)), "nvfp4 is defined for tiles 1x16 or 16x16, not 2x16"),
        ((NVFP4, "1x16"), r"not '1x16': a tile is \(1, 16\) or \(16, 16\)"),
        ((NVFP4, 16), r"not 16: a tile is \(1, 16\)"),
        ((NVFP4, (1, 16), "stochastic"), r"'rne' \(to nearest\) or 'sr' \(stochastic\), not 'stochastic'"),
        ((NVFP4, (1, 16), None), "not None"),
        ((NVFP4, (1, 16), "rne", "TE"), "scale_order is 'te' or 'paper', not 'TE'"),
        (("nvfp4", (1, 16)), "format is a record such as NVFP4, not 'nvfp4'"),
    ],
)
def test_a_specification_names_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        QuantSpec(*arguments)


def test_the_tile_of_a_specification_is_the_formats_own():
    for tile in ([1, 16], (1.0, 16.0)):
        assert [type(n) for n in QuantSpec(NVFP4, tile).tile] == [int, int]


def test_a_format_that_is_no_name_is_unknown():
    for name in (None, ["nvfp4"]):
        with pytest.raises(ValueError, match="unknown format"):
            block_format(name)


BAD_REQUESTS = [
    (("nvfp4", 1), {}, TypeError, r"QuantSpec\(NVFP4, \(1, 16\)\), not 'nvfp4'"),
    ((NVFP4, 1), {}, TypeError, "not the format nvfp4 alone"),
    ((RNE, 2), {}, ValueError, "dimension 0 or 1, not 2"),
    ((RNE, -1), {}, ValueError, "dimension 0 or 1, not -1"),
    ((RNE, 1.0), {}, ValueError, "dimension 0 or 1, not 1.0"),
    ((RNE, 1), {"hadamard": None}, TypeError, "size of a transform, or 0 for none; got None"),
    ((RNE, 1), {"hadamard": 0.0}, TypeError, "0 for none; got 0.0"),
    ((RNE, 1), {"hadamard": 12}, ValueError, "Hadamard size 12 .* nearest is 16"),
    ((RNE, 1), {"hadamard": 16.0}, TypeError, "one of 2, 4, 8, 16, 32, 64, 128; got 16.0"),
    ((RNE, 1), {"hadamard": "16"}, TypeError, "got '16'"),
    ((RNE, 1), {"hadamard": 16, "signs": [1.0] * 16}, TypeError, "signs is a torch tensor, not list"),
    (
        (RNE, 1),
        {"hadamard": 16, "signs": torch.ones(16, dtype=torch.bool)},
        ValueError,
        "which bool does not",
    ),
    (
        (RNE, 1),
        {"hadamard": 16, "signs": torch.ones(16, dtype=torch.uint8)},
        ValueError,
        "of bits make 1 - 2",
    ),
    ((RNE, 1), {"seed": 3}, ValueError, "rounding 'rne' takes no seed"),
    ((SR, 1), {}, ValueError, "rounding 'sr' needs a seed"),
    ((SR, 1), {"seed": 1.5}, TypeError, "a seed is an integer, .*, not float 1.5"),
    ((SR, 1), {"seed": np.int64(5)}, TypeError, r"not int64 .*; int\(seed\) is 5"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), BAD_REQUESTS)
def test_a_request_is_refused_when_it_is_made(arguments, options, error, message):
    with pytest.raises(error, match=message):
        CopyRequest(*arguments, **options)


@pytest.mark.parametrize("make", [make_operand, make_operand_reference, make_packed])
@pytest.mark.parametrize(("arguments", "options", "error", "message"), BAD_REQUESTS)
def test_the_same_arguments_are_refused_with_a_tensor(make, arguments, options, error, message):
    spec, along = arguments
    with pytest.raises(error, match=message) as raised:
        make(X, spec, along=along, **options)
    told = raised.value
    assert told.__context__ is None or told.__suppress_context__, "two errors are printed"


@pytest.mark.parametrize("along", [0, 1])
def test_the_shape_that_a_transform_needs_is_named(along):
    for make in (make_operand, make_packed):
        with pytest.raises(ValueError, match=f"dimension {along} .* is 24 long, no multiple of .* 16"):
            make(torch.ones(24, 24), RNE, along=along, hadamard=16)
        with pytest.raises(ValueError, match=r"16 signs expected, got shape \(8,\)"):
            make(X, RNE, along=along, hadamard=16, signs=torch.ones(8))


@pytest.mark.parametrize("pair", [make_operand_pair, make_packed_pair])
def test_a_pair_is_asked_for_by_two_requests(pair):
    for first, second in ((ROWS, RNE), (None, ROWS)):
        with pytest.raises(TypeError, match="two CopyRequests"):
            pair(X, first, second)


def test_what_stands_for_a_tensor_holds_tensors():
    with pytest.raises(TypeError, match="torch tensor, not list"):
        make_operand_pair(SquaredRelu([[1.0]]), ROWS, ROWS)
    with pytest.raises(TypeError, match="torch tensors; got list and Tensor"):
        SquaredReluGradient([[1.0]], X)


@pytest.mark.parametrize(
    ("size", "kind", "seed", "error", "message"),
    [
        (12, "fixed", None, ValueError, "nearest is 16"),
        ("16", "fixed", None, TypeError, "got '16'"),
        (16, "te", None, ValueError, "'none', 'fixed' or 'random', not 'te'"),
        (16, "random", None, ValueError, "random Hadamard signs need a seed"),
        (16, "fixed", 3, ValueError, "'fixed' take no seed, only those of kind 'random' do"),
        (16, "none", 3, ValueError, "'none' take no seed"),
        (16, "random", "x", TypeError, "a seed is an integer, .*, not str 'x'"),
    ],
)
def test_signs_name_what_does_not_fit(size, kind, seed, error, message):
    with pytest.raises(error, match=message):
        sign_vector(size, kind=kind, seed=seed)


def test_bits_are_no_signs_of_a_transform():
    with pytest.raises(ValueError, match=r"which bool does not hold; of bits make 1 - 2 \* bits.float\(\)"):
        transform(X, 16, torch.ones(16, dtype=torch.bool), dim=1)


def test_a_complex_tensor_is_not_told_to_lose_its_imaginary_part():
    for call in CALLS.values():
        with pytest.raises(ValueError, match=r"not complex64$"):
            call(X.to(torch.complex64))


@pytest.mark.parametrize("dim", [2, -3, "0", True])
def test_a_transform_along_no_dimension_is_refused(dim):
    with pytest.raises(ValueError, match=r"shape \(32, 32\) has no dimension"):
        transform(X, 16, None, dim=dim)


def test_random_bits_are_a_tensor_made_of_a_seed():
    with pytest.raises(ValueError, match=r"random_bits\(seed, x.shape\)"):
        quantize(X, SR)
    with pytest.raises(TypeError, match="random_bits is a torch tensor, not int"):
        quantize(X, SR, random_bits=7)
    with pytest.raises(TypeError, match=r"not float 0\.5"):
        random_bits(0.5, (4,))


@pytest.mark.parametrize(
    ("seeds", "message"), [([1, 0.5], "not float 0.5"), ([np.int64(-1)], "int(seed) is -1"), (3, "no list")]
)
def test_seeds_are_a_list_of_integers(seeds, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        seed_tensor(seeds)


def test_codes_that_are_packed_are_bytes():
    for call in (pack_codes, unpack_codes):
        with pytest.raises(TypeError, match="codes is a torch tensor, not list"):
            call([1, 2])
        with pytest.raises(ValueError, match=r"are uint8 \[..., K\], not int64 of shape \(2,\)"):
            call(torch.tensor([1, 2]))


def test_packing_and_unpacking_are_not_mistaken():
    """Either would read the other's codes without an error, and give other numbers."""
    quantized = quantize(X, RNE)
    with pytest.raises(TypeError, match="a Packed, not Quantized"):
        unpack(quantized)
    with pytest.raises(TypeError, match="a Quantized, not Packed"):
        pack(pack(quantized))


def test_results_for_a_tensor_that_wants_a_gradient_carry_none():
    x = X.clone().requires_grad_()
    options = {"along": 0, "hadamard": 16}
    for make in (make_operand, make_operand_reference, make_packed):
        made = vars(make(x, RNE, **options)).values()
        assert not any(part.requires_grad for part in made if isinstance(part, torch.Tensor)), make


def test_an_error_of_another_cause_stays_as_it_is(monkeypatch):
    def breaks(*_arguments, **_options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("repro.numerics.cpu.make_operand_cpu", breaks)
    with pytest.raises(RuntimeError, match="out of memory"):
        make_operand(X, RNE, along=1)
