"""Results of real runs that are kept in the repository, and a results folder made from them.

    recorded/<tier>/runs/<run>/<segment>.json.xz     one record a segment (repro.analysis.record)
    recorded/<tier>/evaluations/<run>.csv.xz         as the evaluation wrote it, run_hash of the run's end added
    recorded/<tier>/mechanisms/<run>.csv.xz          likewise
    recorded/<tier>/bench.json                       rates of the tier's GPU for Table 1, as `repro bench` wrote them
    recorded/<tier>/data_manifest.json               manifest of the data that all runs were trained on

    python -m repro.analysis.recorded restore --tier proxy --results results/proxy-recorded
    python -m repro.analysis.recorded publish --tier proxy --results results/proxy-recorded
    python -m repro.analysis.recorded sweep   --tier proxy            writes recorded/proxy/sweep.csv, prints the best

`restore` writes the frozen runs of today's configuration and, beside each whose record has the same hash, its
metrics. A record of another hash or of other data is stale: it is left out and named. `recorded.json` in the results
folder lists both and makes readers (repro.analysis.results) treat missing runs as not recorded. `publish` is
repro.analysis.published.

Does not: train, judge or draw.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.analysis.published import publish
from repro.analysis.record import MARK, SUFFIX, Record, read_record, restore, write_record
from repro.experiments import Plan, freeze_all, load
from repro.options import OneLineParser

DEFAULT_RECORDED = Path("recorded")
TABLES = ("evaluations", "mechanisms")
#: Below recorded/<tier>, and where a results folder has it.
BENCH, _BENCH_RESULT = "bench.json", Path("bench") / "gemm.json"
# Says that the runs beside it come from records: the workflow deletes MARK before it has it made anew.
_RESTORED = Path("runs") / ".from_records"
_HASH_COLUMN = "run_hash"
_DATA = "data_manifest.json"


def segment_path(folder: Path, run: str, segment: int) -> Path:
    """Where the record of a segment lies below recorded/<tier>."""
    return folder / "runs" / run / f"{segment}{SUFFIX}"


def add_records(records: Sequence[Record], folder: Path, plan: Plan) -> list[str]:
    """Keep records of today's plan and the recorded data; returns what was refused, one line each."""
    refused = []
    for record in records:
        why = stale(record, folder, plan)
        if why:
            refused.append(why)
        else:
            write_record(record, segment_path(folder, record["run"], record["segment"]))
    return refused


def add_table(kind: str, run: str, text: str, folder: Path, plan: Plan) -> None:
    """Keep the CSV of a run's evaluations or mechanisms together with the hash of the run's last segment."""
    assert kind in TABLES, kind
    header, *rows = text.splitlines()
    run_hash = plan.run(run).segments[-1].run_hash
    lines = [f"{header},{_HASH_COLUMN}", *(f"{row},{run_hash}" for row in rows)]
    path = folder / kind / f"{run}.csv.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))


def restore_all(plan: Plan, recorded: Path, results: Path) -> dict[str, Any]:
    """Make a results folder of the records; returns the content of its recorded.json.

    {"recorded": [run/segment, ...], "stale": {run/segment or table: why}}. What an earlier call left is replaced.
    Raises ValueError for a folder with results of training, which it would replace, and naming the file for a record
    that is damaged or lies under another name than its own; OSError where `results` cannot be written.
    """
    if not recorded.is_dir():
        raise ValueError(f"{recorded}: no such folder of records")
    folder = recorded / plan.tier
    restored = results / _RESTORED
    if any(results.glob("runs/*/*/done.json")) and not (restored.is_file() or (results / MARK).is_file()):
        raise ValueError(f"{results}: holds results of training; restore recorded ones into another folder")
    restored.parent.mkdir(parents=True, exist_ok=True)
    restored.touch()
    # Of an earlier call: until all is there again, nothing says so.
    (results / MARK).unlink(missing_ok=True)
    for name in TABLES:
        shutil.rmtree(results / name, ignore_errors=True)
    for path in (*results.glob("runs/*/*/done.json"), *results.glob("runs/*/*/metrics.jsonl")):
        path.unlink()
    freeze_all(plan, results)
    if (folder / BENCH).is_file():
        (results / _BENCH_RESULT).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / BENCH, results / _BENCH_RESULT)
    found: list[str] = []
    left_out: dict[str, str] = {}
    for path in sorted(folder.glob(f"runs/*/*{SUFFIX}")):
        record = read_record(path)
        name = f"{record['run']}/{record['segment']}"
        if path != segment_path(folder, record["run"], record["segment"]):
            raise ValueError(f"{path}: holds the record of {name}; delete it, or give it that name again")
        why = stale(record, folder, plan)
        if why:
            left_out[name] = why
        else:
            restore(record, results / "runs" / name)
            found.append(name)
    for kind in TABLES:
        for path in sorted(folder.glob(f"{kind}/*.csv.xz")):
            run = path.name.removesuffix(".csv.xz")
            text, hashes = _read_table(path)
            known = plan.runs[run].segments[-1].run_hash if run in plan.runs else None
            if hashes != {known}:
                left_out[f"{kind} of {run}"] = _words(f"{kind} of {run}", ", ".join(sorted(hashes)), known)
                continue
            (results / kind).mkdir(parents=True, exist_ok=True)
            (results / kind / f"{run}.csv").write_text(text, encoding="utf-8")
    content = {"tier": plan.tier, "recorded": found, "stale": left_out}
    (results / MARK).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return content


def _read_table(path: Path) -> tuple[str, set[str]]:
    """A kept CSV and the hashes in its last column. Raises ValueError naming the file when it is damaged."""
    try:
        header, *rows = lzma.decompress(path.read_bytes()).decode("utf-8").splitlines()
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ValueError(f"{path}: no readable table ({error})") from None
    if not rows or not header.endswith(f",{_HASH_COLUMN}"):
        raise ValueError(f"{path}: no table of results: it needs rows, and a last column {_HASH_COLUMN}")
    return "".join(f"{line}\n" for line in (header, *rows)), {row.rpartition(",")[2] for row in rows}


def sweep_table(plan: Plan, recorded: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Final validation losses of the recorded sweep, by family and rate; `best` marks the lowest of a family.

    A diverged run has no loss. The second value says, by family, why its best rate is no choice yet: runs that are
    not recorded, or a best rate with none beyond it.
    """
    folder = recorded / plan.tier
    rows: list[dict[str, Any]] = []
    lost: dict[str, list[str]] = {}
    for name, run in plan.sweep.items():
        path = segment_path(folder, name, 0)
        if not path.is_file() or stale(record := read_record(path), folder, plan):
            lost.setdefault(run.family, []).append(name)
            continue
        done = record["done"]
        ended = done["status"] == "completed"
        rows.append(
            {
                "family": run.family,
                "learning_rate": run.segments[0].frozen["schedule"]["learning_rate_max"],
                "validation_loss": record["validation"][-1]["loss"] if ended else None,
                "status": done["status"],
                "run_hash": record["run_hash"],
                "device": done["provenance"]["device"],
                "git_commit": done["provenance"]["git_commit"],
            }
        )
    open_ends = {family: f"not recorded: {', '.join(names)}" for family, names in lost.items()}
    for family in plan.models:
        own = [row for row in rows if row["family"] == family and row["validation_loss"] is not None]
        best = min(own, key=lambda row: row["validation_loss"], default=None)
        for row in own:
            row["best"] = row is best
        rates = [row["learning_rate"] for row in rows if row["family"] == family]
        if best and best["learning_rate"] in (min(rates), max(rates)):
            open_ends.setdefault(family, f"the best rate, {best['learning_rate']:g}, has none beyond it")
    return rows, open_ends


def _write_sweep(plan: Plan, recorded: Path) -> None:
    rows, open_ends = sweep_table(plan, recorded)
    if not rows:
        raise ValueError(f"{recorded / plan.tier}: no run of the sweep is recorded")
    columns = [*rows[0]]
    lines = [",".join(columns), *(",".join(str(row.get(column, "")) for column in columns) for row in rows)]
    (recorded / plan.tier / "sweep.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for row in rows:
        mark = "  <- best" if row.get("best") else ""
        print(f"{row['family']:5} {row['learning_rate']:8g} {row['validation_loss']}{mark}")
    for family, why in open_ends.items():
        print(f"{family}: no choice yet: {why}", file=sys.stderr)


def stale(record: Record, folder: Path, plan: Plan) -> str:
    """Why the record is not of today's plan and of the data of `folder`, which is recorded/<tier>; "" when it is.

    Losses on two corpora cannot be compared. Without a manifest, or data named in the record, all pass.
    """
    name, index = record["run"], int(record["segment"])
    run = plan.runs.get(name) or plan.sweep.get(name)
    if run is None or index >= len(run.segments):
        return f"{name}/{index}: no such run or segment at tier {plan.tier} any more; delete its record"
    known = run.segments[index].run_hash
    if record["run_hash"] != known:
        return _words(f"{name}/{index}", record["run_hash"], known)
    manifest, data = folder / _DATA, record["done"].get("provenance", {}).get("data_sha256")
    if data and manifest.is_file() and data != (of := hashlib.sha256(manifest.read_bytes()).hexdigest()):
        return (
            f"{name}/{index}: trained on other data (manifest {data[:16]}) than the records "
            f"({of[:16]}, {manifest}); run it again on theirs"
        )
    return ""


def _words(name: str, found: str, known: str | None) -> str:
    return f"{name}: recorded with configuration {found}, which is now {known or 'gone'}; run it again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 with one line on stderr for anything the user can mend; stale records are printed, not fatal."""
    parser = OneLineParser(prog="python -m repro.analysis.recorded", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("restore", "publish", "sweep"))
    parser.add_argument("--tier", required=True)
    parser.add_argument("--results", type=Path, help="results folder, e.g. results/proxy-recorded")
    parser.add_argument("--recorded", type=Path, default=DEFAULT_RECORDED)
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--figures", type=Path, default=Path("paper_figures"))
    chosen = parser.parse_args(arguments)
    try:
        plan = load(chosen.tier, configs_dir=chosen.configs)
        if chosen.command == "sweep":
            _write_sweep(plan, chosen.recorded)
            return 0
        if chosen.results is None:
            raise ValueError(f"{chosen.command}: say --results, e.g. --results results/{plan.tier}-recorded")
        if chosen.command == "publish":
            for path in publish(plan, chosen.results, chosen.recorded, chosen.figures):
                print(path)
            return 0
        content = restore_all(plan, chosen.recorded, chosen.results)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{chosen.results}: {len(content['recorded'])} of {len(list(plan.segments))} segments are recorded")
    for why in content["stale"].values():
        print(f"stale: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
