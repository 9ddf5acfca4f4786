"""What a campaign brings back: finished segments as records and its tables, in one archive of a few MB.

    campaign.json.xz    {"tier", "records": [record, ...], "tables": {"evaluations/<run>": text, ...}, "status",
                         "left_out": [why, ...], "logs": {task that failed: end of its log}}

Written on the machine that trained (no pandas, no configs); `keep` puts the content into recorded/<tier> where the
project's configuration is at hand. A run of 3,000 steps takes some 15 kB. Does not: judge what comes back.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from repro.analysis.record import record_segment
from repro.analysis.recorded import TABLES, add_records, add_table, stale
from repro.campaign.folder import log_of, read_status
from repro.experiments import Plan

ARCHIVE = "campaign.json.xz"
_LOG_CHARACTERS = 4000


def collect(out: Path, target: Path, *, tier: str) -> dict[str, Any]:
    """Write `target`/campaign.json.xz from a campaign's folder; returns the content.

    Segments that are not finished are left out; so is a damaged one, with its reason in `left_out`.
    Raises:
        ValueError: no campaign was started in `out`.
    """
    status = read_status(out)
    if not status:
        raise ValueError(f"{out}: no campaign was started there")
    records, left_out = [], []
    for done in sorted((out / "runs").glob("*/*/done.json")):
        try:
            records.append(record_segment(done.parent))
        except ValueError as error:
            left_out.append(str(error))
    tables = {
        f"{kind}/{path.stem}": path.read_text(encoding="utf-8")
        for kind in TABLES
        for path in sorted((out / kind).glob("*.csv"))
    }
    failed = [name for name, state in status["tasks"].items() if state["state"] == "failed"]
    content = {
        "tier": tier,
        "records": records,
        "tables": tables,
        "status": status,
        "left_out": left_out,
        "logs": {
            name: log_of(out, name).read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
            for name in failed
        },
    }
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    (target / ARCHIVE).write_bytes(lzma.compress(text, preset=6))
    return content


def keep(archive: Path, recorded: Path, plan: Plan) -> tuple[int, list[str]]:
    """Put an archive's content into recorded/<tier>; returns (segments kept, what was refused, one line each).

    Tables of a run are kept only when its last segment came with them, of today's hash and the recorded data.
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
    number = len(records) - len(refused)
    hashes = {(record["run"], record["run_hash"]) for record in records if not stale(record, folder, plan)}
    for name, text in content["tables"].items():
        kind, run = name.split("/", 1)
        if run in plan.runs and (run, plan.runs[run].segments[-1].run_hash) in hashes:
            add_table(kind, run, text, folder, plan)
        else:
            refused.append(f"{kind} of {run}: its run did not come with it in today's configuration")
    return number, refused
