"""Table 1 (Section 2): the formats, and matrix-product rates as they were measured. Claims C2, C3, C4.

C2 and the bits of C4 follow from the format records; the bytes of C4 are what packing stored in the benchmark.
"""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import rules, tables
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.trained_run import short_commit
from repro.analysis.verdicts import NOT_MEASURED, REPRODUCED, UNRESOLVED, Verdict
from repro.numerics.formats import BLOCK_FORMATS, MXFP4, NVFP4

# Rows of the table: block formats beside what they are compared to; mxfp6 has no record here.
ORDER = ("fp32", "bf16", "fp8_e4m3", "fp8_block", "mxfp8", "mxfp6", "mxfp4", "nvfp4")
PLAIN = {"fp32": ("FP32", "32"), "bf16": ("BF16", "16"), "fp8_e4m3": ("E4M3", "8")}
#: In the names of the cards whose speed-ups the paper states, in its order: GB200 (or B200), GB300 (or B300).
CHIPS = ("B200", "B300")
#: As the benchmark's notes begin; behind it stands what multiplied the operands, where the card's own product did.
ON_THE_FLY = "operands quantised on the fly"
ALONE, QUANTISED = "measured: the product alone", f"measured: {ON_THE_FLY}"
NAMES = {"fp8_e4m3": "FP8, one scale", "fp8_block": "FP8, blocks"}


def data(results: Results) -> pd.DataFrame:
    """One row a fact: format records (kind "record"), rates by kind, and packed storage."""
    bench = results.bench()
    rows: list[dict] = []
    for form in BLOCK_FORMATS.values():
        facts = {
            "element": form.element.name,
            "scale": form.scale.name,
            "block": "x".join(map(str, form.tiles_1d)),
            "bits_per_value": form.bits_per_value(),
            "element_bits": form.element.bits,
            "element_max": form.element.max,
            "element_min": form.element.min_subnormal,
            "magnitudes": " ".join(f"{value:g}" for value in form.element.magnitudes)
            if form.element.bits <= 4
            else "",
            "tensor_scale_bits": 32 if form.tensor_scale else 0,
        }
        rows += [
            {"format": form.name, "kind": "record", "fact": key, "value": value}
            for key, value in facts.items()
        ]
    wanted = [row for row in bench["rows"] if row["name"].startswith(("product/", "storage/"))]
    measured = [(*row["name"].split("/"), row) for row in wanted]
    for group, name, kind, row in measured:
        details = row["details"]
        if group == "product":
            kind = "absent" if row["measured"] is None else kind
            found = {"tflops": details.get("tflops"), "over_bf16": row["ratio"], "note": row["note"]}
        else:
            kind, found = "storage", {"bytes": row["measured"], **details}
        rows += [{"format": name, "kind": kind, "fact": key, "value": value} for key, value in found.items()]
    shape = next(row["details"] for _, name, kind, row in measured if (name, kind) == ("bf16", "native"))
    machine = {
        "device": bench["device"],
        "threads": bench.get("threads"),
        "git_commit": short_commit(str(bench["git_commit"])),
    }
    shape_words = f"{shape['m']} x {shape['n']} x {shape['k']}"
    return pd.DataFrame(rows).assign(tier=results.tier, shape=shape_words, **machine)


def display(table: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Rows of the printed table."""
    rows = []
    for name in ORDER:
        stated = paper.stated["formats"].get(name, {})
        native, emulated = (_fact(table, name, kind, "tflops") for kind in ("native", "emulated"))
        absent = _fact(table, name, "absent", "note")
        speedup = stated.get("speedup")
        rows.append(
            (
                NAMES.get(name, name.upper()),
                _fact(table, name, "record", "element") or stated.get("element") or PLAIN[name][0],
                _fact(table, name, "record", "scale") or stated.get("scale", "-"),
                _fact(table, name, "record", "block") or (f"1x{stated['block']}" if stated else "-"),
                _fact(table, name, "record", "bits_per_value") or PLAIN.get(name, ("", "6.25"))[1],
                f"{speedup[0]}x / {speedup[1]}x" if speedup else "1x" if name == "bf16" else "-",
                _rate(table, name, "native", native) or _reason(absent, name),
                _on_the_fly(table, name, emulated) or "-",
            )
        )
    columns = [
        "format",
        "element",
        "scale",
        "block",
        "bits a value",
        "GB200 / GB300, the paper",
        ALONE,
        QUANTISED,
    ]
    return pd.DataFrame(rows, columns=columns)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    first = table.iloc[0]
    notes = [
        f"{ON_THE_FLY}: as in training, for a product in a wider format, or the card's where it is named",
        f"{first['shape']} on {first['device']}, {first['threads']} threads, commit {first['git_commit']}",
        "TFLOP/s and rate relative to BF16; medians of the repetitions",
    ]
    if not any(chip in str(first["device"]) for chip in CHIPS):
        notes.append("rates of another machine say nothing about the paper's GPUs")
    widths = {ALONE: 26, QUANTISED: 26, "GB200 / GB300, the paper": 12, "bits a value": 8}
    return tables.table_figure(display(table, paper), title=paper.title, lines=notes, widths=widths)


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    return [_binades(table, paper), _hardware(table, paper), _memory(table, paper)]


def _binades(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C2: a scale rounded up to a power of two leaves a block's amax anywhere in (max/2, max] of the element."""
    magnitudes = [float(value) for value in str(_fact(table, MXFP4.name, "record", "magnitudes")).split()]
    smallest, largest = min(value for value in magnitudes if value), max(magnitudes)
    used, whole = math.log2(largest / 2 / smallest), math.log2(largest / smallest)
    unused = [value for value in magnitudes if value > largest / 2]
    stated = paper.claims["C2"].numbers["value"]
    tolerance = paper.judge["C2"]["tolerance"]
    holds = (
        abs(used - stated[0]) <= tolerance and abs(whole - stated[1]) <= tolerance and unused == [4.0, 6.0]
    )
    return rules.exact(
        paper.claims["C2"],
        element=paper.element,
        tier=str(table["tier"].iloc[0]),
        paper=f"{stated[0]} of {stated[1]} binades, ±4 and ±6 unused",
        ours=f"{used:.3f} of {whole:.3f} binades, {' and '.join(f'±{value:g}' for value in unused)} unused",
        holds=holds,
        reason="worst case of a UE8M0 scale rounded up, from the element record",
    )


def _hardware(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C3: native rates over BF16's on a card that Table 1 names; a lower one decides nothing about the peak."""
    claim, device = paper.claims["C3"], str(table["device"].iloc[0])
    speedups = {name: form["speedup"] for name, form in paper.stated["formats"].items()}
    stated = ", ".join(f"{name.upper()} {a}x/{b}x" for name, (a, b) in speedups.items())

    def verdict(word: str, ours: str, reason: str) -> Verdict:
        said = (f"{stated} (GB200/GB300)", ours, word, reason, str(table["tier"].iloc[0]))
        return Verdict(claim.id, paper.element, claim.kind, claim.statement, *said)

    card = next((number for number, chip in enumerate(CHIPS) if chip in device), None)
    if card is None:
        reason = f"needs a GB200 and a GB300 (compute capability 10.0 and 10.3); measured on {device}"
        return verdict(NOT_MEASURED, "", reason)
    found = {name: _fact(table, name, "native", "over_bf16") for name in speedups}
    rates = {name: float(rate) for name, rate in found.items() if rate is not None}
    ours = ", ".join(f"{name.upper()} {rate:.2f}x" for name, rate in rates.items())
    missing = [name.upper() for name in speedups if name not in rates]
    reason = f"on {device}" + (f", without {', '.join(missing)}" if missing else "")
    if not rates:
        return verdict(NOT_MEASURED, "", reason)
    judge = paper.judge["C3"]
    below = [name.upper() for name, rate in rates.items() if rate < judge["share"] * speedups[name][card]]
    if below:
        return verdict(UNRESOLVED, ours, f"{reason}; {', '.join(below)} too far below: {judge['because']}")
    return verdict(REPRODUCED, ours, f"{reason}; {judge['because']}")


def _memory(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C4: bits from the record equal the bytes that packing stored, and about half of FP8's."""
    num_values = int(_number(table, NVFP4.name, "num_values"))
    bits = NVFP4.bits_per_value() + 32 / num_values
    stored = 8 * _number(table, NVFP4.name, "bytes") / num_values
    ratio = _number(table, NVFP4.name, "over_fp8")
    tolerance = paper.judge["C4"]["tolerance"]
    return rules.exact(
        paper.claims["C4"],
        element=paper.element,
        tier=str(table["tier"].iloc[0]),
        paper="about half: 4.5 bits + 32/numel against 8 bits + scales",
        ours=f"{stored:.5f} bits stored a value, {ratio:.3f} of FP8's",
        holds=math.isclose(stored, bits, rel_tol=1e-6) and abs(ratio - 0.5) <= tolerance,
        reason=f"record says {bits:.5f}; bytes of {num_values:,} packed values, scales included",
    )


def _fact(table: pd.DataFrame, name: str, kind: str, fact: str) -> str | None:
    rows = table[(table["format"] == name) & (table["kind"] == kind) & (table["fact"] == fact)][
        "value"
    ].dropna()
    return None if rows.empty else str(rows.iloc[0])


def _number(table: pd.DataFrame, name: str, fact: str) -> float:
    found = _fact(table, name, "storage", fact)
    if found is None:
        raise ValueError(f"the benchmark of GEMM rates lists no storage of {name}")
    return float(found)


def _rate(table: pd.DataFrame, name: str, kind: str, tflops: str | None) -> str | None:
    if tflops is None:
        return None
    over = _fact(table, name, kind, "over_bf16")
    digits = float(f"{float(tflops):.3g}")  # three of them, and no exponent
    return f"{digits:,g} TFLOP/s" + (f", {float(over):.2f}x" if over else "")


def _on_the_fly(table: pd.DataFrame, name: str, tflops: str | None) -> str | None:
    """The rate with quantising, and where the card multiplied the codes themselves, that it did: its note says so."""
    rate = _rate(table, name, "emulated", tflops)
    note = _fact(table, name, "emulated", "note") or ""
    multiplied = note.removeprefix(ON_THE_FLY).removeprefix(", ")
    return f"{rate}\n{multiplied}" if rate and multiplied else rate


def _reason(absent: str | None, name: str) -> str:
    if name == "mxfp6":
        return "not built here"
    if absent is None:
        return "-"
    return absent.partition(":")[0]
