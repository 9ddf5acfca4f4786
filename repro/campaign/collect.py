"""What a campaign brings back: finished segments as records and its tables, in one archive of a few MB.

    campaign.json.xz    {"tier", "records": [record, ...], "tables": {"evaluations/<run>": text, ...}, "status"}

Written on the machine that trained (no pandas, no configs); `keep` puts the content into recorded/<tier> where the
project's configuration is at hand. A run of 3,000 steps takes some 15 kB. Does not: judge what comes back.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from repro.analysis.record import record_segment
from repro.analysis.recorded import TABLES, add_records, add_table
from repro.experiments import Plan

ARCHIVE = "campaign.json.xz"


def collect(out: Path, target: Path, *, tier: str) -> dict[str, Any]:
    """Write `target`/campaign.json.xz from a campaign's folder; returns the content.

    Segments that are not finished are left out; so is one whose done.json belongs to another run.yaml.
    """
    records = [
        record_segment(done.parent)
        for done in sorted((out / "runs").glob("*/*/done.json"))
        if (done.parent / "metrics.jsonl").is_file()
    ]
    tables = {
        f"{kind}/{path.stem}": path.read_text(encoding="utf-8")
        for kind in TABLES
        for path in sorted((out / kind).glob("*.csv"))
    }
    status = out / "status.json"
    content = {
        "tier": tier,
        "records": records,
        "tables": tables,
        "status": json.loads(status.read_text(encoding="utf-8")) if status.is_file() else {},
    }
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    (target / ARCHIVE).write_bytes(lzma.compress(text, preset=6))
    return content


def keep(archive: Path, recorded: Path, plan: Plan) -> tuple[int, list[str]]:
    """Put an archive's content into recorded/<tier>; returns (segments kept, what was refused, one line each).

    Tables of a run are kept only when its last segment came with them or is recorded with today's hash already.
    Raises:
        ValueError: the archive is damaged or of another tier.
    """
    try:
        content = json.loads(lzma.decompress(archive.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ValueError(f"{archive}: no readable campaign archive ({error})") from None
    if content["tier"] != plan.tier:
        raise ValueError(f"{archive}: of tier {content['tier']}, not {plan.tier}")
    folder = recorded / plan.tier
    records = content["records"]
    refused = add_records(records, folder, plan)
    hashes = {(record["run"], record["run_hash"]) for record in records}
    for name, text in content["tables"].items():
        kind, run = name.split("/", 1)
        if run in plan.runs and (run, plan.runs[run].segments[-1].run_hash) in hashes:
            add_table(kind, run, text, folder, plan)
        else:
            refused.append(f"{kind} of {run}: its run did not come with it in today's configuration")
    return len(records) - len([why for why in refused if " of " not in why.split(":")[0]]), refused
