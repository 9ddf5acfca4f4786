"""The paper's own curves as results of its own size."""

from __future__ import annotations

import pandas as pd

from repro.analysis.paper import Paper

BASELINES = {"12b": "12b_fp8", "8b": "8b_bf16", "1p2b": "1p2b_bf16"}


def as_results(
    paper: Paper,
    *,
    panel: str,
    text: str,
    seeds: int,
    names: dict[str, str] | None = None,
    apart: float = 0.002,
) -> pd.DataFrame:
    """A tidy table with the paper's curves as gaps of runs of the paper's size.

    seeds: how many nearly equal replicas each run has, `apart` from the curve; names: curve -> run it is given to.
    """
    horizon = int(paper.stated["horizon_trillions"] * 1e12)
    parts = []
    for curve in dict.fromkeys(paper.curves["run"]):
        rows = paper.curve(curve, panel)
        run = (names or {}).get(curve, curve)
        for seed in range(1, seeds + 1):
            name = run if seed == 1 else f"{run}_seed{seed}"
            labels = {
                "run": name,
                "role": "run" if seed == 1 else "replica",
                "replica_of": run,
                "replica": seed,
            }
            gap = rows[["fraction", "value"]].assign(**labels, quantity="gap")
            gap["value"] += apart * (-1) ** seed
            parts.append(gap)
    family = parts[0]["run"].iloc[0].split("_")[0]
    labels = {"run": BASELINES[family], "role": "baseline", "replica_of": BASELINES[family], "replica": 1}
    parts.append(pd.DataFrame([{"fraction": 1.0, "value": 1.2, "quantity": "loss", **labels}]))
    table = pd.concat(parts, ignore_index=True)
    table["tokens"] = (table["fraction"] * horizon).astype("int64")
    size = {"num_parameters": int(paper.stated["parameters"]), "horizon_tokens": horizon, "tier": "paper"}
    table = table.assign(panel="main", text=text, paired=True, status="completed", **size)
    return table.assign(end_tokens=table.groupby("run")["tokens"].transform("max"))
