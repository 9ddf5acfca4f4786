"""What the README shows can be done, and what it says was measured is what was recorded."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest
import torch
from readme_text import ROOT, claims_table, section

from repro.analysis.check import summary
from repro.analysis.claims_file import load_claims
from repro.analysis.record import read_record
from repro.analysis.verdicts import REPRODUCED, Verdict


def results(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


MEASURED = section("How fast is it here")


def rows_of(files: list[str]) -> dict[str, dict]:
    """By name; of one that several files hold the last."""
    return {row["name"]: row for file in files for row in results(file)["rows"]}


#: Of the files that the words before the table name.
ROWS = rows_of(re.findall(r"`(bench_.*?\.json)`", MEASURED.partition("\n| ")[0]))


class Recorded(NamedTuple):
    """ratio, target where the file states one, and tokens per second: of the row, and of what it is compared with."""

    ratio: float
    target: float | None
    tokens: tuple[float, float] | None


def recorded(cell: str) -> list[Recorded]:
    """Of the rows that a cell names, in the file that it names; or of one file's first case over another's."""
    names = re.findall(r"`([^`]+)`", cell)
    if names[0] == "ratio_in_turn":
        return [
            Recorded(row["details"]["ratio_in_turn"], None, None)
            for name, row in ROWS.items()
            if fnmatchcase(name, names[1])
        ]
    if " over " in cell:
        tokens = tuple(results(file)["cases"][0]["tokens_per_second"] for file in names)
        return [Recorded(tokens[0] / tokens[1], None, tokens)]
    rows = rows_of([names.pop()]) if " in `" in cell else ROWS
    found = [row for name in names for row in rows if fnmatchcase(row, name)]
    assert len(found) >= len(names) > 0, cell
    return [of_row(rows, row) for row in found]


def of_row(rows: dict[str, dict], name: str) -> Recorded:
    row, floor = rows[name], rows.get(re.sub("/[^/]*$", "/bf16", name))
    tokens = [one["details"].get("tokens_per_second") for one in (row, floor) if one]
    return Recorded(
        row["ratio"],
        float(row["target"][3:]) if row["target"] else None,
        tuple(tokens) if all(tokens) else None,
    )


def lines() -> list[tuple[str, ...]]:
    """(words, row names, ratios, targets) of the table, without its head."""
    table = [line.strip("| ").split(" | ") for line in MEASURED.splitlines() if line.startswith("| ")]
    return [tuple((*cells, "")[:4]) for cells in table[1:]]


@pytest.mark.parametrize(("words", "names", "ratios", "targets"), lines(), ids=lambda cell: cell[:40])
def test_the_numbers_of_the_table_are_the_recorded_ones(words, names, ratios, targets):
    found = recorded(names)
    assert re.findall(r"[\d.]+", ratios) == [f"{one.ratio:.2f}" for one in found]
    stated = [float(target) for target in re.findall(r"[\d.]+", targets)]
    if any(one.target for one in found):
        assert stated == [one.target for one in found]
    told = re.findall(r"([\d,]+)k of ([\d,]+)k", words)
    if told:
        assert told == [tuple(f"{value / 1000:,.0f}" for value in one.tokens) for one in found]


def test_runs_wait_for_samples_no_longer_than_told():
    records = (read_record(path)["done"] for path in (ROOT / "recorded").rglob("runs/*/*.json.xz"))
    shares = [
        100 * done["provenance"]["data_seconds"] / done["provenance"]["seconds"]
        for done in records
        if "data_seconds" in done["provenance"]
    ]
    told = f"the {len(shares)} recorded runs that count it waited for them for {max(shares):.2f} % of their"
    assert told in " ".join(MEASURED.split())


LAYERS = ("8192x5120x20480", "8192x4096x4096", "16384x1024x4096")


def repeats(shape: str) -> list[float]:
    """Ratios of the layer in the two short runs of the committed order of passes."""
    parts = results("layer_repeats_h200_2026-11-30.json")
    committed = [part for name, part in parts.items() if name.startswith("as committed")]
    return [
        row["ratio"] for part in committed for row in part["rows"] if row["name"] == f"layer/nvfp4/{shape}"
    ]


def test_what_is_said_of_the_largest_layers_time_is_what_was_recorded():
    largest, _, smallest = LAYERS
    row = ROWS[f"layer/nvfp4/{largest}"]
    over_bf16 = [
        ROWS[f"layer/nvfp4/{shape}"]["ratio"] / ROWS[f"layer/bf16/{shape}"]["ratio"] for shape in LAYERS
    ]
    words = " ".join(MEASURED.split())
    for text in (
        "misses its target by little: {:.2f} in this run, {:.2f} and {:.2f} in two short".format(
            row["ratio"], *repeats(largest)
        ),
        "(the smallest: {:.2f}; {:.2f} and {:.2f};".format(
            ROWS[f"layer/nvfp4/{smallest}"]["ratio"], *repeats(smallest)
        ),
        f"loses what its operands saved: {row['details']['ratio_in_turn']:.2f}.",
        "NVFP4 takes {:.2f}, {:.2f} and {:.2f} times as long".format(*over_bf16),
    ):
        assert text in words


def test_what_is_said_of_clocks_and_power_is_what_was_read():
    layers = results("layer_clocks_h200_2026-11-30.json")["layers"]
    read = {phase["phase"]: phase for phase in layers[0]["phases"]}
    assert "x".join(map(str, layers[0]["shape"])) == LAYERS[0]
    everything = [phase for layer in layers for phase in layer["phases"]]
    assert {phase["share_power_limited"] for phase in everything} == {1.0}
    (limit,) = {phase["power_limit_watts"] for phase in everything}
    normal, operands, layer = (
        "{:.2f} ms at {:.0f} MHz".format(*read[name]["milliseconds"], read[name]["clock_mhz"])
        for name in ("products of normal numbers", "products of NVFP4 operands", "NVFP4 layer")
    )
    words = " ".join(MEASURED.split())
    assert f"held down by the limit of {limit:.0f} W" in words
    in_turn = read["NVFP4 layer and products in turn"]
    assert f"In turn the clock is {in_turn['clock_mhz']:.0f} MHz in the median" in words
    assert (
        f"the three products of normal numbers {normal}, the same products on NVFP4 operands, which cost less, "
        f"{operands}, the layer {layer}." in words
    )


def test_what_the_passes_take_of_the_largest_layer_is_what_was_recorded():
    phases = results("layer_clocks_h200_2026-11-30.json")["layers"][0]["phases"]
    normal, operands, layer = (phase["milliseconds"][0] for phase in phases[:3])
    copy_rate = results("bench_h200_2026-11-30.json")["ceilings"]["copy_bytes_per_second"]
    tokens, inputs, outputs = map(int, LAYERS[0].split("x"))
    # Bytes a value with the amax pass: activation and gradient BF16, read twice, two operands written; weight FP32.
    passes = {
        "pair/nvfp4/rne": 8 * tokens * inputs,
        "qdq/nvfp4/16x16/rne/fp32": 10 * inputs * outputs,
        "pair/nvfp4/sr": 8 * tokens * outputs,
    }
    as_copies = 1e3 * sum(passes.values()) / copy_rate
    alone = 1e3 * sum(num_bytes / copy_rate / ROWS[name]["ratio"] for name, num_bytes in passes.items())
    words = " ".join(MEASURED.split())
    assert (
        f"The {layer - operands:.2f} ms beyond its products are {alone:.2f} of passes (timed by themselves; "
        f"{as_copies:.2f} at the copy rate)" in words
    )
    gain, row = alone - as_copies, ROWS[f"layer/nvfp4/{LAYERS[0]}"]
    there = (layer - gain) / normal
    here = (row["measured"] - gain / 1e3) / row["floor"]
    assert f"as fast as copies would leave {there:.2f} there and {here:.2f} in the table's run" in words


def test_what_is_said_of_the_stochastic_pair_is_what_was_recorded():
    own, *others = results("pairs_tiles_h200_2026-11-30.json")["rows"]
    best = max(row["ratio"] for row in (own, *others))
    here = ROWS["pair/nvfp4/sr/amax-given"]["ratio"]
    words = " ".join(MEASURED.split())
    assert (
        f"{here:.2f} here, {own['ratio']:.2f} in `pairs_tiles_h200_2026-11-30.json`, where the best of "
        f"{1 + len(others)} tiles has {best:.2f}." in words
    )


def test_steps_that_two_gpus_gave_to_the_bit_are_the_recorded_ones():
    (two,) = results("train_step_h200x2_2026-11-30.json")["cases"]
    one = next(
        case
        for case in results("train_step_batch128_nvfp4_h200_2026-11-30.json")["cases"]
        if case["recipe"] == two["recipe"]
    )
    early = results("train_step_h200x2_2026-11-29.json")
    before = [early[number]["cases"][0] for number in ("one", "two")]
    assert [one["processes"], two["processes"]] == [1, 2] == [case["processes"] for case in before]
    assert one["losses"] == two["losses"]
    assert before[0]["losses"] == before[1]["losses"]
    words = " ".join(MEASURED.split())
    assert f"{len(two['losses'])} NVFP4 steps in `train_step_h200x2_2026-11-30.json`" in words
    assert f"{len(before[0]['losses'])} of an early trainer" in words


def test_the_packages_beside_ours_are_the_recorded_ones():
    peers = rows_of(["quantize_peers_h200_2026-11-30.json"])
    times = {name: row["ratio"] for name, row in peers.items()}
    words = " ".join(MEASURED.split())
    for package, text in (
        ("nvidia-modelopt-fake_quant_block", "nvidia-modelopt's fused kernel takes {:.1f} times as long"),
        ("torchao-compiled", "`torchao` compiled {:.1f},"),
        ("fouroversix-triton", "fouroversix's Triton kernel {:.0f},"),
        ("transformer_engine-reference", "Transformer Engine's Python reference {:.0f};"),
    ):
        assert text.format(times[f"nvfp4/1x16/rne/{package}"]) in words
    codes, shares = [], []
    for package in ("torchao-compiled", "fouroversix-triton", "transformer_engine-reference"):
        details = peers[f"nvfp4/1x16/rne/{package}"]["details"]
        codes.append(details["quantise_over_ours"])
        shares.append(details["agreement"]["codes_differ"] / details["agreement"]["codes"])
    values = peers["nvfp4/1x16/rne/nvidia-modelopt-fake_quant_block"]["details"]["agreement"]
    assert shares.pop() == 0, "Transformer Engine's"
    shares.append(values["values_differ"] / values["values"])
    said = "packed codes, `torchao` {:.1f}, fouroversix {:.1f} and Transformer Engine {:.0f} (these two"
    assert said.format(*codes) in words
    assert f"differ in {100 * min(shares):.1f} to {100 * max(shares):.1f} % of the values" in words
    cpu = results("quantize_cpu_2026-11-29.json")["targets"]
    assert f"takes {cpu['times_clone']:.1f} times as long as copying them" in words
    assert f"takes {cpu['best_peer_times_fused']:.0f} times as long as this kernel" in words


CLAIMS = load_claims(ROOT / "configs" / "claims.yaml")


def test_the_claims_of_the_tiny_tier_are_those_of_the_claims_file():
    said, rows = claims_table("docs/claims_tiny.md")
    assert [row[:2] for row in rows] == [[name, claim.statement] for name, claim in CLAIMS.items()]
    assert all(row[4] == REPRODUCED for row in rows if CLAIMS[row[0]].kind == "exact")
    verdicts = [
        Verdict(name, "", CLAIMS[name].kind, statement, paper, ours, verdict, reason="", tier="tiny")
        for name, statement, paper, ours, verdict in rows
    ]
    assert said == summary(verdicts)
    assert said.partition(". ")[0] in section("The claims at the tiny tier")


def test_the_paper_says_the_same_at_every_tier():
    _, tiny = claims_table("docs/claims_tiny.md")
    _, proxy = claims_table("recorded/proxy/claims.md")
    compared = [(a[2], b[2]) for a, b in zip(tiny, proxy, strict=True) if b[2] not in ("-", "")]
    assert len(compared) > 30
    assert all(a == b for a, b in compared), compared


def test_the_lines_of_the_numerics_run():
    code = [line[4:] for line in section("The numerics").splitlines() if line.startswith("    ")]
    names = {"x": torch.randn(32, 64)}
    exec("\n".join(code), names)
    assert names["quantized"].dequantize().shape == (32, 64)
    assert names["rows"].codes.shape == (32, 32)
    assert names["columns"].codes.shape == (64, 16)


def test_the_lines_for_your_own_model_run_in_a_llama(monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_hidden_layers=3)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    code = [line[4:] for line in section("In your own model").splitlines() if line.startswith("    ")]
    names = {"model": model, "optimizer": optimizer}
    monkeypatch.chdir(ROOT)
    exec("\n".join(code), names)
    ids = torch.randint(64, (2, 32))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    assert names["context"].step == 1
    quantised = {line["layer"] for line in names["record"] if line["format"] == "nvfp4"}
    assert len(quantised) == 7, "one of three blocks is quantised"
    assert {line["hadamard"] for line in names["record"] if line["gemm"] == "wgrad"} == {0, 32}
