"""The tiny tier, once it has been run here, gives the recorded losses to the bit.

A change that should leave the CPU's numbers alone is found out by it: kernels, recipes, order of samples, optimizer.
Bits hold for the same versions on one kind of processor; elsewhere, and before the tier has been run, the test is
skipped and says so. After a change that is meant to move them: `python tests/workflow/test_tiny_losses.py` records
anew.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from repro.experiments.plan import load

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results" / "tiny" / "runs"
RECORD = Path(__file__).with_name("tiny_losses.json")

#: Of /proc/cpuinfo. Virtual machines name processors of several generations alike, and libraries choose by these.
_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size")


def processor() -> dict[str, str]:
    """What tells this machine's processor and C library from others; empty where it is not known."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    told = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in first.splitlines() if ":" in line)
    flags = hashlib.sha256(told.get("flags", "").encode()).hexdigest()[:16]
    known = {key: told[key].strip() for key in _PROCESSOR if key in told}
    return {**known, "flags_sha256": flags, "libc": " ".join(platform.libc_ver())}


def found() -> dict[str, Any]:
    """What the tier left in results/: PyTorch, processor, data, and each segment's hash and final losses."""
    segments = {}
    environments = set()
    for path in sorted(RUNS.glob("*/*/done.json")):
        done = json.loads(path.read_text(encoding="utf-8"))
        made = done["provenance"]
        versions = tuple(made["versions"][name] for name in ("python", "torch", "numpy"))
        environments.add((versions, made["device"], made["threads"], made["data_sha256"]))
        segments[f"{done['run']}/{done['segment']}"] = {"hash": done["run_hash"], "final": done["final"]}
    if len(environments) > 1:
        pytest.skip(f"results/tiny was made in several environments: {sorted(environments)}")
    for versions, device, threads, data in environments:
        here = processor()
        if device != here.get("model name"):
            pytest.skip(f"results/tiny was made on {device}")
        return {
            "versions": list(versions),
            "processor": here,
            "threads": threads,
            "data_sha256": data,
            "segments": segments,
        }
    pytest.skip("the tiny tier has not been run here (make reproduce)")


def test_the_tiny_tier_gives_the_recorded_losses_to_the_bit() -> None:
    ours, recorded = found(), json.loads(RECORD.read_text(encoding="utf-8"))
    for name in ("versions", "processor", "threads"):
        if ours[name] != recorded[name]:
            pytest.skip(f"recorded with {name} {recorded[name]!r}, run here with {ours[name]!r}")
    assert ours["data_sha256"] == recorded["data_sha256"], "the tier's data is another"
    # What is here may be a part of the tier, or have been trained from other configurations since.
    same = {
        name
        for name, segment in ours["segments"].items()
        if segment["hash"] == recorded["segments"].get(name, {}).get("hash")
    }
    if not same:
        pytest.skip("no segment here has the recorded configuration")
    other = [name for name in sorted(same) if ours["segments"][name] != recorded["segments"][name]]
    assert not other, f"other final losses than recorded: {', '.join(other)}"


def test_the_recorded_losses_are_of_todays_configurations() -> None:
    """Else nothing of the tier would be compared any more."""
    plan = load("tiny", configs_dir=ROOT / "configs")
    hashes = {f"{one.run}/{one.index}": one.run_hash for one in plan.segments}
    assert {
        name: segment["hash"] for name, segment in json.loads(RECORD.read_text())["segments"].items()
    } == hashes


if __name__ == "__main__":
    RECORD.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
