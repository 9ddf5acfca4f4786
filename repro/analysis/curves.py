"""Curves as tidy tables: training logs of a baseline, of runs against it and of their seed replicas.

A tidy curve table has one row a point:

    panel     which panel of the figure
    run       run name; role is "baseline", "run" or "replica" (of another seed; replica_of names the original)
    quantity  "loss" (nats a token) or "gap" (per cent, repro.analysis.gaps); measured on "train" or "validation" text
    tokens    since the start of the lineage; fraction is the share of the reference horizon (the baseline's)
    value     what was logged, unsmoothed
    and the provenance of the run (Run.meta) repeated in every row, so that a recorded CSV stands alone.

In curves of more than MAX_POINTS points equally many neighbours are averaged, counted from the end, so that a mean
over rows is one over what was logged. Does not: read files, read end values or slopes off a curve
(repro.analysis.readings), draw or judge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from repro.analysis.gaps import relative_gap
from repro.analysis.results import Results
from repro.analysis.trained_run import Run, replica_of

# A figure is some 2000 pixels wide: more points than that only make the CSV large.
MAX_POINTS = 2000


def curve_table(
    results: Results,
    runs: Sequence[str],
    *,
    baseline: str,
    text: str,
    panel: str = "main",
    quantities: Sequence[str] = ("loss", "gap"),
    noise_from: Sequence[str] = (),
) -> pd.DataFrame:
    """Tidy curves of `baseline` and `runs`, and of the seed replicas of these and of `noise_from`.

    Args:
        runs: names without the baseline. A fork contributes its own part only, from its fork point on.
        text: "train" or "validation", the loss that is read.
        quantities: a gap needs a run and its baseline to log at the same tokens, somewhere at least; a loss does not.
        noise_from: further runs of the same model whose replicas tell about its seed noise; such a run joins as role
            "replica" itself, where it has any (needs.noise in the figure's paper.yaml).

    A replica is paired with the baseline that shares its seed, that is the seed of the run at the root of its lineage
    (a fork repeated with other random streams keeps its parent's baseline); at a tier without such a baseline it is
    compared with the original one and column `paired` is false. One whose baseline is not recorded yet is left out.
    Baselines have no gap rows; where one diverged, the gaps to it have no value from there on. A run that is not
    recorded is one row of role "missing" and quantity "none"; without the baseline all runs are missing.
    """
    lost = [name for name in (baseline, *runs) if not results.has(name)]
    if baseline in lost:
        return missing_rows(results, [baseline, *runs], text=text, panel=panel)
    runs = [name for name in runs if name not in lost]
    noise_from = [name for name in noise_from if results.replicas(name) and results.has(name)]
    base = results.run(baseline)
    tables = [_rows(base, None, reference=base, role="baseline", text=text)]
    # Losses alone may be of runs that log at other tokens than the baseline, as those of another horizon do.
    with_gap = "gap" in quantities
    pair = base if with_gap else None
    tables += [_rows(results.run(name), pair, reference=base, role="run", text=text) for name in runs]
    only_for_noise = [name for name in noise_from if name not in (baseline, *runs)]
    for original in dict.fromkeys([baseline, *runs, *noise_from]):
        names = [original] if original in only_for_noise else []
        for name in [*names, *results.replicas(original)]:
            tables += _replica_rows(results, results.run(name), base, text=text, with_gap=with_gap)
    table = pd.concat(tables, ignore_index=True)
    table.insert(0, "panel", panel)
    table = table[table["quantity"].isin(quantities)]
    if lost:
        table = pd.concat([table, missing_rows(results, lost, text=text, panel=panel)])
    return table.reset_index(drop=True)


def missing_rows(results: Results, runs: Sequence[str], *, text: str, panel: str) -> pd.DataFrame:
    """One row for each run that is not recorded, so that a table says what it lacks; in every other respect empty."""
    rows = []
    for name in runs:
        known = results.meta(name)
        status = "without its baseline" if results.has(name) else known["status"]
        own = {
            "panel": panel,
            "run": name,
            "role": "missing",
            "quantity": "none",
            "text": text,
            "replica_of": name,
        }
        rows.append({**own, "replica": 1, "paired": True, **known, "status": status})
    return pd.DataFrame(rows).assign(tokens=math.nan, fraction=math.nan, value=math.nan)


def missing_runs(table: pd.DataFrame) -> dict[str, str]:
    """run -> why, of the runs that a table lacks."""
    if "role" not in table:
        return {}
    rows = table[table["role"] == "missing"]
    return dict(zip(rows["run"], rows["status"], strict=True))


def missing_names(table: pd.DataFrame, runs: Iterable[str] | None = None) -> list[str]:
    """Runs that a table lacks (of `runs`, in their order), for a list headed "not recorded": any other reason stands
    in brackets."""
    lost = missing_runs(table)
    names = lost if runs is None else dict.fromkeys(name for name in runs if name in lost)
    return [name if lost[name] == "not recorded" else f"{name} ({lost[name]})" for name in names]


def select(table: pd.DataFrame, run: str, quantity: str, *, panel: str | None = None) -> pd.DataFrame:
    """Rows of one curve, by tokens. Raises ValueError when the table has none."""
    rows = table[(table["run"] == run) & (table["quantity"] == quantity)]
    if panel is not None:
        rows = rows[rows["panel"] == panel]
    if rows.empty:
        raise ValueError(
            f"no {quantity} of run {run!r} in the table; it has {', '.join(sorted(set(table['run'])))}"
        )
    return rows.sort_values("tokens")


def _replica_rows(results: Results, run: Run, base: Run, *, text: str, with_gap: bool) -> list[pd.DataFrame]:
    """Rows of one replica; none while the baseline of its seed is configured and not recorded."""
    if replica_of(run.name)[0] == base.name:
        return [_rows(run, None, reference=base, role="replica", text=text)]
    root_number = replica_of(run.lineage[0].frozen["run"])[1]
    twin_name = base.name if root_number == 1 else f"{base.name}_seed{root_number}"
    paired = twin_name in results.run_names
    if paired and not results.has(twin_name):
        return []
    twin = results.run(twin_name) if paired else base
    pair = twin if with_gap else None
    return [_rows(run, pair, reference=base, role="replica", text=text, paired=paired)]


def _rows(
    run: Run, base: Run | None, *, reference: Run, role: str, text: str, paired: bool = True
) -> pd.DataFrame:
    curve = run.curve(text)
    parts = [curve.rename(columns={"loss": "value"}).assign(quantity="loss")]
    if base is not None:
        parts.append(_gaps(run, base, text).rename(columns={"gap": "value"}).assign(quantity="gap"))
    own = [_thin(part[part["tokens"] > run.own_start_tokens]) for part in parts]
    if run.diverged_tokens is not None:
        # A run may diverge before its first validation: its end is a row of its own, with no value.
        names = ["loss", "gap"][: len(parts)]
        ends = [{"tokens": run.diverged_tokens, "quantity": name} for name in names]
        own = [part[part["tokens"] < run.diverged_tokens] for part in own] + [pd.DataFrame(ends)]
    table = pd.concat(own, ignore_index=True)
    table["value"] = table["value"].astype(float)
    table["fraction"] = table["tokens"] / reference.horizon_tokens
    original, number = replica_of(run.name)
    labels = {"run": run.name, "role": role, "replica_of": original, "replica": number, "paired": paired}
    columns = table[["quantity", "tokens", "fraction", "value"]].assign(**labels, text=text, **run.meta())
    first = [
        "run",
        "role",
        "quantity",
        "text",
        "tokens",
        "fraction",
        "value",
        "replica_of",
        "replica",
        "paired",
    ]
    return columns[first + [column for column in columns if column not in first]]


def _gaps(run: Run, base: Run, text: str) -> pd.DataFrame:
    """relative_gap, NaN from where the baseline diverged; no rows for a run that diverged before it logged one."""
    curve, reference = run.curve(text), base.curve(text)
    lost = curve["tokens"] >= (math.inf if base.diverged_tokens is None else base.diverged_tokens)
    parts = [curve.loc[lost, ["tokens", "fraction"]].assign(gap=math.nan)]
    if len(reference) and not lost.all():
        parts.insert(0, relative_gap(reference, curve[~lost], names=(base.name, run.name)))
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


def _thin(curve: pd.DataFrame) -> pd.DataFrame:
    if len(curve) <= MAX_POINTS:
        return curve
    bins = -(
        np.arange(len(curve))[::-1] // math.ceil(len(curve) / MAX_POINTS)
    )  # only the first may hold fewer
    means = curve.groupby(bins, as_index=False)[["tokens", "fraction", "value"]].mean()
    return means.assign(tokens=means["tokens"].round().astype("int64"), quantity=curve["quantity"].iloc[0])
