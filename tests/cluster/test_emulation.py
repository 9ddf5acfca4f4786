"""Emulated operands under Transformer Engine's calls: the same numbers as the portable layer, and nothing is lost."""

import enum

import fake_te
import pytest
import torch

from repro.cluster.emulation import Clock, OperandMaker
from repro.recipes.context import RunContext
from repro.recipes.linear import QuantizedLinear

T, K, N = 128, 256, 128
LAYER = "model.layers.3.mixer.in_proj"
RUNS = [
    "12b_nvfp4", "12b_rht4", "12b_rht128", "12b_signs_none", "12b_signs_per_transform", "12b_sr_dgrad_only",
    "12b_sr_wgrad_only", "12b_switch_forward_82", "12b_switch_backward_82", "12b_fp8", "8b_mxfp4", "1p2b_sr_backward",
    "1p2b_sr_activations", "1p2b_sr_weights", "1p2b_rht_dgrad", "1p2b_rht_fprop", "1p2b_weights_different",
    "1p2b_weights_same", "1p2b_weights_2d", "1p2b_activations_different", "1p2b_activations_same",
]  # fmt: skip


class GEMMType(enum.Enum):
    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


def custom_gemm(a, b, gemm_type, out_dtype):
    """What TE 2.20's custom_gemm reads and calls, in its order: A and B are the swapped operands."""
    assert a.custom
    assert b.custom
    fields = {"fprop": ("data", "data"), "dgrad": ("data", "data_t"), "wgrad": ("data_t", "data_t")}[
        gemm_type.value
    ]
    scales = [f"scale{field.removeprefix('data')}" for field in fields]
    qa, qb = getattr(a, fields[0]), getattr(b, fields[1])
    sa, sb = getattr(a, scales[0]), getattr(b, scales[1])
    assert all(tensor is not None for tensor in (qa, qb, sa, sb)), (
        "custom_gemm refuses missing data or scales"
    )
    return a._quantizer.qgemm(
        qa, qb, None, out_dtype, sa, sb, None, gemm_type=gemm_type, qresult_x=a, qresult_w=b
    )


def layer(recipe, clock, name=LAYER):
    return {
        kind: fake_te.EmulatedQuantizer(OperandMaker(recipe, kind, layer=name, clock=clock))
        for kind in ("input", "weight", "grad_output")
    }


def step(quantisers, x, w, g):
    """One micro batch as TE's linear module runs it: y, dx, dw."""
    qx, qw = quantisers["input"](x), quantisers["weight"](w)
    qw.update_usage(rowwise_usage=True)
    y = custom_gemm(qx, qw, GEMMType.FPROP, torch.bfloat16)
    qx.update_usage(rowwise_usage=False, columnwise_usage=True)
    saved, qx = qx.prepare_for_saving()
    assert qx.data_t is None, "nothing may be held outside the saved tensors"
    assert qx.restore_from_saved(saved) == []
    qg = quantisers["grad_output"](g)
    dx = custom_gemm(qg, qw, GEMMType.DGRAD, torch.bfloat16)
    dw = custom_gemm(qg, qx, GEMMType.WGRAD, torch.float32)
    return y, dx, dw


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator).bfloat16() for shape in ((T, K), (N, K), (T, N)))


def portable(recipe, x, w, g, *, at_step, microbatch, name=LAYER):
    context = RunContext(1)
    context.step, context.microbatch = at_step, microbatch
    weight = torch.nn.Parameter(w.float())
    x = x.clone().requires_grad_()
    y = QuantizedLinear(weight, recipe, name=name, block=3, context=context)(x)
    y.backward(g)
    return y.detach(), x.grad, weight.grad


@pytest.mark.parametrize("run", RUNS)
def test_products_equal_those_of_the_portable_layer_to_the_bit(segment, run):
    recipe = segment(run).recipe
    x, w, g = tensors()
    clock = Clock(1)
    clock.begin(7, training=True)
    ours = step(layer(recipe, clock), x, w, g)
    theirs = portable(recipe, x, w, g, at_step=7, microbatch=0)
    for name, a, b in zip(("y", "dx", "dw"), ours, theirs, strict=True):
        assert torch.equal(a, b), f"{run}: {name} differs by up to {(a.float() - b.float()).abs().max()}"


def test_the_second_micro_batch_and_other_replicas_draw_the_bits_of_their_own_samples(segment):
    """Replica r of R works on micro batches r, r + R, ...: the noise is that of one process in the same order."""
    recipe = segment("12b_nvfp4").recipe
    x, w, g = tensors()
    for replica in (0, 2):
        clock = Clock(1, replica=replica, replicas=4)
        clock.begin(0, training=True)
        quantisers = layer(recipe, clock)
        for number in range(3):
            _, dx, dw = step(quantisers, x, w, g)
            _, dx_portable, dw_portable = portable(
                recipe, x, w, g, at_step=0, microbatch=4 * number + replica
            )
            assert torch.equal(dx, dx_portable), (replica, number)
            assert torch.equal(dw, dw_portable), (replica, number)


def test_backward_passes_that_run_late_meet_their_own_signs(segment):
    """In a pipeline two forward passes come before the first backward pass; fresh signs must still cancel."""
    recipe = segment("12b_signs_per_transform").recipe
    x, w, g = tensors()
    clock = Clock(1)
    clock.begin(0, training=True)
    quantisers = layer(recipe, clock)
    first, second = quantisers["input"](x), quantisers["input"](x)
    for number, qx in enumerate((first, second)):
        dw = custom_gemm(quantisers["grad_output"](g), qx, GEMMType.WGRAD, torch.float32)
        assert torch.equal(dw, portable(recipe, x, w, g, at_step=0, microbatch=number)[2]), number
    assert not torch.equal(first.data_t, second.data_t)


def test_trial_20_equal_tensors_get_different_noise_and_a_replay_the_same(segment):
    recipe = segment("12b_nvfp4").recipe
    _, _, g = tensors()

    def noise(name, at_step):
        clock = Clock(1)
        clock.begin(at_step, training=True)
        return layer(recipe, clock, name)["grad_output"](g).data

    assert torch.equal(noise("a", 5), noise("a", 5))
    assert not torch.equal(noise("a", 5), noise("b", 5))
    assert not torch.equal(noise("a", 5), noise("a", 6))


def test_validation_does_not_move_the_streams_of_training(segment):
    recipe = segment("1p2b_sr_activations").recipe
    x, _, _ = tensors()

    def second_step(validates):
        clock = Clock(1)
        quantiser = layer(recipe, clock)["input"]
        clock.begin(0, training=True)
        quantiser(x)
        if validates:
            clock.begin(0, training=False)
            quantiser(x)
        clock.begin(1, training=True)
        return quantiser(x).data

    assert torch.equal(second_step(True), second_step(False))


def test_validation_has_noise_of_its_own_whatever_was_trained_before(segment):
    recipe = segment("1p2b_sr_activations").recipe
    x, _, _ = tensors()

    def noise(*, trained, training):
        clock = Clock(1)
        quantiser = layer(recipe, clock)["input"]
        clock.begin(3, training=True)
        for _ in range(trained):
            quantiser(x)
        clock.begin(3, training=training)
        return quantiser(x).data

    validation = noise(trained=0, training=False)
    assert torch.equal(validation, noise(trained=2, training=False))
    assert not torch.equal(validation, noise(trained=0, training=True))


def test_a_cached_weight_is_quantised_again_in_place(segment):
    recipe = segment("12b_nvfp4").recipe
    _, w, _ = tensors()
    quantiser = layer(recipe, Clock(1))["weight"]
    workspace = quantiser(w)
    quantiser.update_quantized(2 * w, workspace)
    assert torch.equal(workspace.operand("rowwise").scale, quantiser(2 * w).operand("rowwise").scale)
    before = workspace.data
    quantiser.update_quantized(w, workspace, noop_flag=torch.ones(1))
    assert workspace.data is before


def test_a_cached_weight_serves_forward_passes_before_the_first_backward_pass(segment):
    """In a pipeline; Transformer Engine makes a cached weight by a quantiser that is not `internal`."""
    quantiser = layer(segment("12b_nvfp4").recipe, Clock(1))["weight"]
    _, w, _ = tensors()
    quantiser.internal = False
    cached = quantiser(w)
    quantiser.internal = True
    saved = [cached.prepare_for_saving()[0] for _ in range(2)]
    cached.update_usage(rowwise_usage=True, columnwise_usage=True)
    for micro_batch in saved:
        assert cached.restore_from_saved(micro_batch) == []
    passing = quantiser(w)
    passing.prepare_for_saving()
    with pytest.raises(RuntimeError, match="was dropped"):
        passing.operand("rowwise")


def test_usages_that_are_not_asked_for_are_not_made(segment):
    quantiser = layer(segment("12b_nvfp4").recipe, Clock(1))["input"]
    x, _, _ = tensors()
    quantiser.set_usage(rowwise=True, columnwise=False)
    made = quantiser(x)
    assert made.get_usages() == {"rowwise": True, "columnwise": False}
    with pytest.raises(RuntimeError, match=rf"{LAYER}: columnwise operand was not made"):
        made.update_usage(columnwise_usage=True)


def test_two_dimensional_weights_are_held_once(segment):
    _, w, _ = tensors()
    made = layer(segment("8b_mxfp4").recipe, Clock(1))["weight"](w)
    assert made.data is made.data_t


def test_three_dimensional_inputs_are_flattened(segment):
    x, _, _ = tensors()
    quantiser = layer(segment("12b_nvfp4").recipe, Clock(1))["input"]
    made = quantiser(x.view(T // 4, 4, K))
    assert made.data.shape == (T, K)
    assert made.size() == (T // 4, 4, K)
    assert made.size(-1) == K


def test_a_bias_is_refused(segment):
    quantiser = layer(segment("12b_nvfp4").recipe, Clock(1))["input"]
    with pytest.raises(ValueError, match="--disable-bias-linear"):
        quantiser.qgemm(
            None, None, None, torch.bfloat16, None, None, torch.zeros(1), gemm_type=GEMMType.FPROP
        )


def test_non_finite_operands_are_counted(segment):
    clock = Clock(1)
    clock.begin(0, training=True)
    x, _, _ = tensors()
    x[0, 0] = float("nan")
    layer(segment("12b_nvfp4").recipe, clock)["input"](x)
    assert clock.context.nonfinite == 2, "both operands of the input"
