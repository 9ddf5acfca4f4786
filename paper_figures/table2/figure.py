"""Table 2 (Section 3): accuracy of the last checkpoints, FP8 and NVFP4, in the paper's groups. Claims C8, C9, T2.

A share p of n items has the standard error sqrt(p (1 - p) / n), which is 0 where every answer is right and too small
near it: at least that of Agresti and Coull (1998, Am. Stat. 52, 119) is taken, sqrt(q (1 - q) / (n + 4)) with
q = (p n + 2) / (n + 4). A group's mean takes it over from its tasks. C8 compares several groups, which hold together
at 95 % (Bonferroni), as the pairs of an order do.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import pandas as pd
from matplotlib.figure import Figure

from repro.analysis import source_lines, tables
from repro.analysis.arms import scale
from repro.analysis.markdown import HEADING
from repro.analysis.paper import Paper
from repro.analysis.results import Results
from repro.analysis.verdicts import (
    CONTRADICTED,
    NOT_MEASURABLE,
    NOT_MEASURED,
    REPRODUCED,
    UNRESOLVED,
    Case,
    Verdict,
)

FP8, NVFP4 = "12b_fp8", "12b_nvfp4"
# Two-sided 95 % of a normal distribution: one difference of two scores against its standard error.
Z = 1.96
#: Items that Agresti and Coull add, half of them right.
ADDED = 4


def data(results: Results) -> pd.DataFrame:
    """Scores of both runs at their last evaluated checkpoint, tasks and group means (task "mean")."""
    tables_of_runs = []
    for name in (FP8, NVFP4):
        scores = results.evaluations(name)
        last = scores[scores["tokens"] == scores["tokens"].max()]
        tables_of_runs.append(last.assign(role="run", **results.run(name).meta()))
    return pd.concat(tables_of_runs, ignore_index=True)


def errors(scores: pd.DataFrame) -> pd.Series:
    """Standard errors of one run's scores, tasks and group means, with scores near 0 and 1 in mind (fractions of 1).

    A group keeps its recorded error where its tasks don't make up its items: some are not in the mean.
    """
    is_task = scores["task"] != "mean"
    share = (scores["value"] * scores["num_items"] + ADDED / 2) / (scores["num_items"] + ADDED)
    least = (share * (1 - share) / (scores["num_items"] + ADDED)) ** 0.5
    found = scores["stderr"].where(~is_task, scores["stderr"].clip(lower=least))
    for index, mean in scores[~is_task].iterrows():
        members = is_task & (scores["group"] == mean["group"])
        if scores.loc[members, "num_items"].sum() == mean["num_items"]:
            found[index] = (found[members] ** 2).sum() ** 0.5 / members.sum()
    return found


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """One row a task: FP8, NVFP4, their difference and its standard error, in points; chance."""
    keys = ["group", "task"]
    runs = (table[table["run"] == run] for run in (FP8, NVFP4))
    fp8, nvfp4 = (rows.assign(stderr=errors(rows)).set_index(keys) for rows in runs)
    both = fp8.join(nvfp4[["value", "stderr"]].add_suffix("_nvfp4"), how="inner")
    frame = pd.DataFrame(
        {
            "fp8": 100 * both["value"],
            "nvfp4": 100 * both["value_nvfp4"],
            "fp8_stderr": 100 * both["stderr"],
            "nvfp4_stderr": 100 * both["stderr_nvfp4"],
            "chance": 100 * both["chance"],
        }
    ).reset_index()
    frame["difference"] = frame["nvfp4"] - frame["fp8"]
    # The same items are asked twice, so this is an upper bound of the standard error of the difference.
    frame["stderr"] = (frame["fp8_stderr"] ** 2 + frame["nvfp4_stderr"] ** 2) ** 0.5
    return frame


def display(table: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """This tier's groups and tasks, then the paper's."""
    ours = pairs(table)
    scores = paper.claims["T2"].numbers
    rows: list[tuple[str, ...]] = []
    for group, tasks in paper.stated["groups"].items():
        mean = ours[(ours["group"] == group.lower()) & (ours["task"] == "mean")]
        words = ("-", "-", "-", "-") if mean.empty else _ours(mean.iloc[0])
        rows.append((HEADING + group, *words, *_paper(scores["groups"][group])))
        names = {paper.stated["tasks"][task]: task for task in tasks}
        for line in ours[(ours["group"] == group.lower()) & (ours["task"] != "mean")].itertuples():
            stated = names.pop(line.task, None)
            asked = paper.stated["stand_ins"].get(stated)
            rows.append(
                (
                    f"{line.task} ({asked})" if asked else stated or line.task,
                    *_ours(line),
                    *(_paper(scores["tasks"][stated]) if stated else ("",) * 3),
                )
            )
        rows += [(task, "", "", "", "", *_paper(scores["tasks"][task])) for task in names.values()]
    head = [
        "accuracy (%)",
        "FP8",
        "NVFP4",
        "NVFP4 - FP8",
        "chance",
        "FP8, paper",
        "NVFP4, paper",
        "difference, paper",
    ]
    return pd.DataFrame(rows, columns=head)


def draw(table: pd.DataFrame, paper: Paper) -> Figure:
    notes = [
        "± one standard error, at least Agresti and Coull's (two right and two wrong answers added), since with none "
        "wrong the usual one is 0; the difference's is that of two independent samples, an upper bound"
    ]
    return tables.table_figure(
        display(table, paper),
        title=paper.title,
        subtitle=source_lines.stand_in(table),
        lines=source_lines.provenance(table, *notes),
        widths={"difference, paper": 11},
    )


def claims(table: pd.DataFrame, paper: Paper) -> list[Verdict]:
    return [_within_noise(table, paper), _mmlu_pro(table, paper), _scores(table, paper)]


def _within_noise(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C8: every group but code inside the evaluation noise, code below it; all groups together at 95 %."""
    case = paper.case("C8", scale(table, [FP8, NVFP4]), paper="equal within noise, except code (-2.85)")
    means = pairs(table)
    means = means[means["task"] == "mean"]
    ours = ", ".join(f"{row.group} {row.difference:+.1f} ± {row.stderr:.1f}" for row in means.itertuples())
    learned = [means[run] > means["chance"] + Z * means[f"{run}_stderr"] for run in ("fp8", "nvfp4")]
    ours += f"; {(learned[0] & learned[1]).sum()} of {len(means)} groups above chance"
    if missing := case.reach.missing(case.scale):
        return case.verdict(NOT_MEASURABLE, ours, f"not measurable at this size ({missing})")
    exception = paper.judge["C8"]["exception"]
    limit = NormalDist().inv_cdf(1 - 0.05 / (2 * len(means)))
    apart = means[means["difference"].abs() > limit * means["stderr"]]
    others = [row.group for row in apart.itertuples() if row.group != exception]
    code = apart[(apart["group"] == exception) & (apart["difference"] < 0)]
    if others:
        return case.verdict(
            CONTRADICTED, ours, f"{', '.join(others)} differ by more than {limit:.2f} standard errors"
        )
    if code.empty:
        ahead = exception in set(apart["group"])
        where = "ahead by more than that" if ahead else "too"
        reason = f"all {'other ' * ahead}groups inside {limit:.2f} standard errors, {exception} {where}"
        return case.verdict(UNRESOLVED, ours, reason)
    return case.verdict(
        REPRODUCED, ours, f"only {exception} differs by more than {limit:.2f} standard errors"
    )


def _mmlu_pro(table: pd.DataFrame, paper: Paper) -> Verdict:
    """C9: MMLU-Pro of both runs; the claim lists NVFP4 first."""
    nvfp4, fp8 = paper.claims["C9"].numbers["value"]
    case = paper.case("C9", scale(table, [FP8, NVFP4]), paper=f"NVFP4 {nvfp4}, FP8 {fp8}")
    ours = pairs(table).set_index("task")
    task = paper.stated["tasks"]["MMLU-Pro 5-shot"]
    if task not in ours.index:
        return case.verdict(
            NOT_MEASURED, "", "this tier does not evaluate MMLU-Pro; its own tasks stand for groups"
        )
    row = ours.loc[task]
    words = f"NVFP4 {row['nvfp4']:.2f}, FP8 {row['fp8']:.2f} (± {row['fp8_stderr']:.2f})"
    if missing := case.reach.missing(case.scale):
        return case.verdict(NOT_MEASURABLE, words, f"not measurable at this size ({missing})")
    scores = [
        ("NVFP4", row["nvfp4"], nvfp4, row["nvfp4_stderr"]),
        ("FP8", row["fp8"], fp8, row["fp8_stderr"]),
    ]
    return _compare(case, words, scores, tolerance=paper.judge["C9"]["tolerance"])


def _scores(table: pd.DataFrame, paper: Paper) -> Verdict:
    """T2: every benchmark's two scores, where the benchmark is asked as in the paper."""
    case = paper.case("T2", scale(table, [FP8, NVFP4]), paper="14 tasks, two scores each")
    ours = pairs(table).set_index("task")
    stated = paper.claims["T2"].numbers["tasks"]
    found = {task: ours.loc[name] for task, name in paper.stated["tasks"].items() if name in ours.index}
    words = f"{len(found)} of {len(stated)} benchmarks evaluated"
    stand_ins = {task: asked for task, asked in paper.stated["stand_ins"].items() if task in found}
    words += "".join(f"; {task} as {asked}, not compared" for task, asked in stand_ins.items())
    if len(found) < len(stated):
        reason = "this tier evaluates tasks that stand for the groups, not these benchmarks"
        return case.verdict(NOT_MEASURED, words, reason)
    if missing := case.reach.missing(case.scale):
        return case.verdict(NOT_MEASURABLE, words, f"not measurable at this size ({missing})")
    scores = [
        (f"{task} {run.upper()}", row[run], stated[task][i], row[f"{run}_stderr"])
        for task, row in found.items()
        for i, run in enumerate(("fp8", "nvfp4"))
        if task not in stand_ins
    ]
    return _compare(case, words, scores, tolerance=paper.judge["T2"]["tolerance"])


def _compare(
    case: Case, words: str, scores: list[tuple[str, float, float, float]], *, tolerance: float
) -> Verdict:
    """Each (name, ours, stated, standard error) within the tolerance; contradicted beyond it and the noise."""
    distances = [(name, abs(ours - stated), Z * stderr) for name, ours, stated, stderr in scores]
    off = [name for name, distance, noise in distances if distance > tolerance + noise]
    wide = [name for name, distance, _ in distances if distance > tolerance]
    if off:
        return case.verdict(
            CONTRADICTED, words, f"further than {tolerance} points and the noise: {', '.join(off)}"
        )
    if wide:
        return case.verdict(
            UNRESOLVED, words, f"further than {tolerance} points, inside the noise: {', '.join(wide)}"
        )
    return case.verdict(REPRODUCED, words, f"every score within {tolerance} points")


def _ours(row: object) -> tuple[str, str, str, str]:
    return (
        f"{row.fp8:.1f} ± {row.fp8_stderr:.1f}",
        f"{row.nvfp4:.1f} ± {row.nvfp4_stderr:.1f}",
        f"{row.difference:+.1f} ± {row.stderr:.1f}",
        "-" if math.isnan(row.chance) else f"{row.chance:.0f}",
    )


def _paper(values: list[float]) -> tuple[str, str, str]:
    fp8, nvfp4 = values
    return f"{fp8:.2f}", f"{nvfp4:.2f}", f"{nvfp4 - fp8:+.2f}"
