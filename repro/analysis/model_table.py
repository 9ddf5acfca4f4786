"""Tables 3, 4 and 5: a model's dimensions as the paper prints them, at full size here, and of the tier's stand-in.

The full-size numbers come from configs/models/paper/<family>.yaml at every tier, so the exact claims T3-T5
(dimensions and parameter count) and C13 (share of blocks in BF16) hold or fail everywhere alike. Does not: build a
model; ModelSpec counts.
"""

from __future__ import annotations

import pandas as pd

from repro.analysis import rules
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import Verdict
from repro.experiments.model import ModelSpec

QUANTITIES = {
    "num_blocks": "blocks",
    "mamba_blocks": "of them Mamba-2",
    "ffn_blocks": "of them feed-forward",
    "attention_blocks": "of them self-attention",
    "hidden_size": "model dimension",
    "ffn_hidden_size": "FFN dimension",
    "num_attention_heads": "query heads",
    "num_key_value_heads": "key/value heads",
    "head_dim": "head dimension",
    "mamba_state_size": "Mamba state dimension",
    "mamba_num_groups": "Mamba groups",
    "vocab_size": "vocabulary",
    "num_parameters": "parameters",
    "linear_parameters": "in linear layers",
}


def quantities(spec: ModelSpec) -> dict[str, int | None]:
    """The numbers of one model, by the keys of QUANTITIES; None where the model has no such part."""
    hybrid = spec.kind == "hybrid"
    return {
        "num_blocks": spec.num_blocks,
        "mamba_blocks": spec.pattern.count("M") if hybrid else None,
        "ffn_blocks": spec.pattern.count("-") if hybrid else None,
        "attention_blocks": spec.pattern.count("*") if hybrid else None,
        "hidden_size": spec.hidden_size,
        "ffn_hidden_size": spec.ffn_hidden_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "mamba_state_size": spec.mamba_state_size,
        "mamba_num_groups": spec.mamba_num_groups,
        "vocab_size": spec.vocab_size,
        "num_parameters": spec.num_parameters(),
        "linear_parameters": sum(spec.linear_parameters_by_block()),
    }


def model_data(results: Results, family: str) -> pd.DataFrame:
    """One row a quantity and a model ("paper" = full size, "tier" = this tier's), plus the BF16 block counts."""
    rows = []
    for which, tier in (("paper", "paper"), ("tier", results.tier)):
        spec = results.model_spec(family, tier=tier)
        numbers = {key: number for key, number in quantities(spec).items() if number is not None}
        for key, counts in spec.bf16_blocks.items():
            # Also of the linear layers: each block has two (Appendix A.1: in/out of Mamba-2, up/down,
            # QKV/projection of attention).
            numbers[f"bf16:{key}"] = (counts.first + counts.last) / spec.num_blocks
        rows += [
            {"model": spec.name, "which": which, "quantity": key, "value": number}
            for key, number in numbers.items()
        ]
    return pd.DataFrame(rows).assign(family=family, tier=results.tier)


def number(table: pd.DataFrame, which: str, quantity: str) -> float | None:
    """One number of the table; None where the model has none."""
    rows = table[(table["which"] == which) & (table["quantity"] == quantity)]
    return None if rows.empty else float(rows["value"].iloc[0])


def model_display(table: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Rows of the printed table: quantity, the paper, our full-size model, this tier's stand-in."""
    tier = str(table["tier"].iloc[0])
    rows = []
    for key, words in QUANTITIES.items():
        full = number(table, "paper", key)
        if full is None:
            continue
        stated = paper.stated["dimensions"].get(key)
        rows.append((words, *(_words(value) for value in (stated, full, number(table, "tier", key)))))
    for quantity in table.loc[(table["which"] == "paper"), "quantity"]:
        if quantity.startswith("bf16:") and quantity != "bf16:none":
            stated = paper.stated.get("bf16_share", {}).get(quantity.removeprefix("bf16:"))
            words = f"linear layers in BF16, {quantity.removeprefix('bf16:').replace('_', ' + ')}"
            ours = (number(table, which, quantity) for which in ("paper", "tier"))
            rows.append(
                (words, *("-" if share is None else f"{100 * share:.1f} %" for share in (stated, *ours)))
            )
    return pd.DataFrame(rows, columns=["", "the paper", "full-size model here", f"stand-in, {tier} tier"])


def model_claim(table: pd.DataFrame, paper: Paper, claim: str) -> Verdict:
    """T3, T4 or T5: every stated dimension equal, the parameter count equal within the digits of the claim."""
    stated = paper.stated["dimensions"]
    wrong = [
        f"{QUANTITIES[key]} {number(table, 'paper', key):g} instead of {value:g}"
        for key, value in stated.items()
        if number(table, "paper", key) != value
    ]
    count, said = number(table, "paper", "num_parameters"), paper.claims[claim].numbers["value"]
    assert count is not None
    counted = abs(count - said) <= paper.judge[claim]["tolerance"]
    return rules.exact(
        paper.claims[claim],
        element=paper.element,
        tier=str(table["tier"].iloc[0]),
        paper=f"{len(stated)} dimensions, {said:,.0f} parameters",
        ours=f"{len(stated) - len(wrong)} of {len(stated)} dimensions equal, {count:,.0f} parameters",
        holds=counted and not wrong,
        reason="; ".join(wrong) or f"counted from the shapes, within {paper.judge[claim]['tolerance']:,.0f}",
    )


def share_claim(table: pd.DataFrame, paper: Paper, claim: str, quantity: str) -> Verdict:
    """C13: share of the linear layers in BF16 of the full-size model."""
    share, said = number(table, "paper", quantity), paper.claims[claim].numbers["value"]
    assert share is not None
    return rules.exact(
        paper.claims[claim],
        element=paper.element,
        tier=str(table["tier"].iloc[0]),
        paper=f"{100 * said:.1f} %",
        ours=f"{100 * share:.2f} %",
        holds=abs(share - said) <= paper.judge[claim]["tolerance"],
        reason="blocks in BF16 x 2 / (blocks x 2): every block has two linear layers",
    )


def _words(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
