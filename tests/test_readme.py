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


def test_what_is_said_of_the_largest_layer_is_what_was_recorded():
    files = [rows_of([f"bench{name}_h200_2026-11-30.json"]) for name in ("_kernels", "", "_layers")]
    shape = "8192x5120x20480"
    before, first, last = (file[f"layer/nvfp4/{shape}"] for file in files)
    alone = files[-1][f"layer/bf16_tensors/{shape}"]["measured"]
    eager = last["details"]
    repeats = [
        row["ratio"]
        for part in results("layer_repeats_h200_2026-11-30.json").values()
        for row in part["rows"]
        if row["name"] == last["name"]
    ]
    bytes_moved = 8 * 8192 * 5120 + 10 * 5120 * 20480 + 8 * 8192 * 20480
    copy_rate = results("bench_layers_h200_2026-11-30.json")["ceilings"]["copy_bytes_per_second"]
    words = " ".join(MEASURED.split())
    for text in (
        f"{before['ratio']:.2f}, {first['ratio']:.2f} and, with launches, {eager['eager_over_bf16']:.2f} times",
        f"{min(repeats):.2f} to {max(repeats):.2f} in four short ones",
        f"in turn with them {last['ratio']:.2f}",
        f"take {1e3 * alone:.1f} to {1e3 * eager['eager_seconds'] / eager['eager_over_bf16']:.1f} ms",
        f"in turn with the NVFP4 layer {1e3 * last['floor']:.1f}",
        f"takes {1e3 * (last['measured'] - last['floor']):.2f} ms more than {1e3 * last['floor']:.2f}",
        f"need {1e3 * bytes_moved / copy_rate:.2f} at the copy rate",
    ):
        assert text in words


def test_what_the_other_layers_take_beside_their_products_is_what_was_recorded():
    rows = rows_of(["bench_layers_h200_2026-11-30.json"])
    copy_rate = results("bench_layers_h200_2026-11-30.json")["ceilings"]["copy_bytes_per_second"]
    more, passes, floors = [], [], []
    for num_tokens, inputs, outputs in ((8192, 5120, 20480), (8192, 4096, 4096), (16384, 1024, 4096)):
        row = rows[f"layer/nvfp4/{num_tokens}x{inputs}x{outputs}"]
        bytes_moved = 8 * num_tokens * inputs + 10 * inputs * outputs + 8 * num_tokens * outputs
        more.append(f"{1e3 * (row['measured'] - row['floor']):.2f}")
        passes.append(bytes_moved / copy_rate)
        floors.append(row["floor"])
    of_passes = [f"{1e3 * seconds:.2f}" for seconds in passes]
    as_copies = [f"{1 + one / floor:.2f}" for one, floor in zip(passes, floors, strict=True)]
    assert more[1] == more[2]
    assert of_passes[1] == of_passes[2]
    words = " ".join(MEASURED.split())
    _, second, third = (f"{1e3 * floor:.2f}" for floor in floors)
    assert (
        f"other two take {more[1]} ms more than {second} and {third}, of which {of_passes[1]} each" in words
    )
    assert "as fast as a copy would leave {}, {} and {}.".format(*as_copies) in words


def test_the_repeats_are_the_recorded_ones():
    """Of three full runs (for pairs they are told in another order), and of four short ones."""
    kernels, first, layers = full = [
        rows_of([f"bench{name}_h200_2026-11-30.json"]) for name in ("_kernels", "", "_layers")
    ]
    largest = [file["layer/nvfp4/8192x5120x20480"]["details"]["eager_over_bf16"] for file in full]
    smallest = [
        row["ratio"]
        for part in results("layer_repeats_h200_2026-11-30.json").values()
        for row in part["rows"]
        if row["name"] == "layer/nvfp4/16384x1024x4096"
    ]
    pairs = [file["pair/nvfp4/sr/amax-given"]["ratio"] for file in (first, kernels, layers)]
    words = " ".join(MEASURED.split())
    for text in (
        "(with launches {:.2f}, {:.2f} and {:.2f})".format(*largest),
        f"the smallest took {min(smallest):.2f} to {max(smallest):.2f}",
        "stands on its target: {:.3f}, {:.3f} and {:.3f} in three full runs".format(*pairs),
    ):
        assert text in words


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
