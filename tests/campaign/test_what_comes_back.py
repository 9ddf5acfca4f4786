"""What a campaign brings back: kept as far as it fits the configuration, and not run again."""

from __future__ import annotations

import json
import time

import pytest
from made_up import campaign

from repro.campaign.collect import collect, keep
from repro.campaign.folder import log_of
from repro.campaign.leases import Lease
from repro.experiments import load


def test_an_archive_is_kept_only_as_far_as_it_fits_the_configuration(frozen, tmp_path):
    campaign(frozen, tmp_path / "out", ["1p2b_bf16", "1p2b_last4"]).run(time.time() + 120)
    done = tmp_path / "out" / "runs" / "1p2b_last4" / "0" / "done.json"
    done.write_text(done.read_text().replace('"run_hash": "', '"run_hash": "0'))
    for run in ("1p2b_bf16", "1p2b_last4"):
        table = tmp_path / "out" / "mechanisms" / f"{run}.csv"
        table.parent.mkdir(exist_ok=True)
        table.write_text("run,value\n")
    collect(tmp_path / "out", tmp_path / "back", tier="tiny")
    number, refused = keep(tmp_path / "back" / "campaign.json.xz", tmp_path / "recorded", load("tiny"))
    assert number == 1
    stale_run, stale_table = refused
    assert "1p2b_last4/0" in stale_run
    assert stale_table.startswith("mechanisms of 1p2b_last4: its run did not come with it")
    kept = tmp_path / "recorded" / "tiny"
    assert (kept / "runs" / "1p2b_bf16" / "0.json.xz").is_file()
    assert [path.name for path in (kept / "mechanisms").iterdir()] == ["1p2b_bf16.csv.xz"]


def test_tables_of_a_run_on_other_data_are_refused_with_it(frozen, tmp_path):
    out, kept = tmp_path / "out", tmp_path / "recorded" / "tiny"
    campaign(frozen, out, ["1p2b_bf16"]).run(time.time() + 120)
    done = out / "runs" / "1p2b_bf16" / "0" / "done.json"
    content = json.loads(done.read_text())
    content.setdefault("provenance", {})["data_sha256"] = "0" * 64
    done.write_text(json.dumps(content))
    (out / "mechanisms").mkdir(exist_ok=True)
    (out / "mechanisms" / "1p2b_bf16.csv").write_text("run,value\n1p2b_bf16,1\n")
    collect(out, tmp_path / "back", tier="tiny")
    kept.mkdir(parents=True)
    (kept / "data_manifest.json").write_text("{}\n")
    number, refused = keep(tmp_path / "back" / "campaign.json.xz", tmp_path / "recorded", load("tiny"))
    assert number == 0
    assert [why.partition(":")[0] for why in refused] == ["1p2b_bf16/0", "mechanisms of 1p2b_bf16"]
    assert [path.name for path in kept.iterdir()] == ["data_manifest.json"]


def test_a_damaged_segment_and_the_end_of_the_log_of_a_failed_one_are_told(frozen, tmp_path):
    out = tmp_path / "out"
    campaign(frozen, out, ["1p2b_bf16", "1p2b_last4"], fails="1p2b_last4/0").run(time.time() + 120)
    (out / "runs" / "1p2b_bf16" / "0" / "metrics.jsonl").write_text("{")
    log_of(out, "1p2b_last4/0").write_text("x" * 5000 + "the end")
    content = collect(out, tmp_path / "back", tier="tiny")
    assert content["records"] == []
    [damaged] = content["left_out"]
    assert "1p2b_bf16" in damaged
    assert content["logs"]["1p2b_last4/0"].endswith("xthe end")
    archive = tmp_path / "back" / "campaign.json.xz"
    with pytest.raises(ValueError, match="of tier tiny, not proxy"):
        keep(archive, tmp_path / "recorded", load("proxy"))


def test_what_is_recorded_is_not_run_again(frozen, tmp_path):
    campaign(frozen, tmp_path / "out", ["1p2b_bf16"]).run(time.time() + 120)
    collect(tmp_path / "out", tmp_path / "back", tier="tiny")
    keep(tmp_path / "back" / "campaign.json.xz", tmp_path / "recorded", load("tiny"))
    lease = Lease("l", "", ("1p2b_bf16", "1p2b_last4"), measure=("1p2b_bf16",))
    left = lease.without_recorded(frozen, tmp_path / "recorded" / "tiny")
    assert left.runs == ("1p2b_bf16", "1p2b_last4"), (
        "its measurement is missing, and its checkpoints are gone"
    )
    left = Lease("l", "", lease.runs).without_recorded(frozen, tmp_path / "recorded" / "tiny")
    assert left.runs == ("1p2b_last4",)
