"""Campaign files and their leases: several names at once, what a file may say, which runs a sweep has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from repro.analysis.record import write_record
from repro.analysis.recorded import add_records, segment_path
from repro.campaign.leases import CampaignFile, load_campaign
from repro.campaign.tasks import tasks_of
from repro.experiments import freeze_all, load
from repro.experiments.content import run_hash_of

FILE = {
    "tier": "tiny",
    "minutes": 5,
    "rates": {
        "tokens_per_second": {"12b bf16": 1e6},
        "start_seconds": 0,
        "evaluate_seconds": 1,
        "measure_seconds": 1,
    },
    "leases": {
        "small": {"runs": ["1p2b_bf16", "1p2b_last4"], "measure": ["1p2b_last4"]},
        "large": {"runs": ["12b_fp8"], "then": ["12b_without_sr"], "evaluate": ["12b_fp8"]},
    },
}


def file_of(tmp_path: Path, **changes: object) -> CampaignFile:
    """The file above with dotted keys changed."""
    content = yaml.safe_load(yaml.safe_dump(FILE))
    for key, value in changes.items():
        place = content
        *parents, last = key.split("__")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_campaign(path)


def groups(priority: dict[str, int]) -> list[list[str]]:
    return [
        [name for name in priority if priority[name] == number] for number in sorted({*priority.values()})
    ]


def test_of_several_names_the_earlier_ones_come_first_and_each_keeps_its_order(frozen, tmp_path):
    lease = file_of(tmp_path).lease(["large", "12b_rht4", "small"], frozen)
    assert lease.runs == ("12b_fp8", "12b_rht4", "1p2b_bf16", "1p2b_last4")
    assert lease.then == ("12b_without_sr",)
    assert (lease.evaluate, lease.measure) == (("12b_fp8",), ("1p2b_last4",))
    assert groups(lease.tasks(frozen)[1]) == [
        ["evaluate:12b_fp8"],  # once its run is done, no later run comes before it
        [f"12b_fp8/{n}" for n in range(len(list((frozen / "12b_fp8").iterdir())))],
        ["12b_nvfp4/0", "12b_without_sr/0"],  # the parent with the first of those that continue it
        ["12b_rht4/0"],
        ["measure:1p2b_last4"],
        ["1p2b_bf16/0", "1p2b_last4/0"],
    ]


def test_a_fork_before_its_parents_name_brings_the_parent_to_the_front(frozen, tmp_path):
    _, priority = file_of(tmp_path).lease(["12b_rht4", "small", "12b_nvfp4"], frozen).tasks(frozen)
    assert priority["12b_nvfp4/0"] == priority["12b_rht4/0"] < priority["1p2b_bf16/0"]
    assert priority["12b_nvfp4/1"] > priority["1p2b_bf16/0"]


def test_a_run_by_itself_is_evaluated_and_measured_as_its_lease_says(frozen, tmp_path):
    file = file_of(tmp_path)
    tables = {
        run: (file.lease([run], frozen).evaluate, file.lease([run], frozen).measure) for run in file.plan.runs
    }
    assert {run: found for run, found in tables.items() if any(found)} == {
        "12b_fp8": (("12b_fp8",), ()),
        "1p2b_last4": ((), ("1p2b_last4",)),
    }


def test_a_run_in_two_names_belongs_to_the_earlier_one(frozen, tmp_path):
    lease = file_of(tmp_path).lease(["12b_without_sr", "large"], frozen)
    assert lease.runs == ("12b_without_sr", "12b_fp8")
    assert lease.then == ()


def test_what_is_recorded_of_several_names_is_not_run_again(frozen, tmp_path):
    recorded = tmp_path / "recorded" / "tiny"
    end = load("tiny").run("1p2b_bf16").segments[-1]
    add_records([record_of("1p2b_bf16", end.run_hash)], recorded, load("tiny"))
    lease = file_of(tmp_path).lease(["large", "small"], frozen).without_recorded(frozen, recorded)
    assert lease.runs == ("12b_fp8", "1p2b_last4")
    assert groups(lease.tasks(frozen)[1])[-2:] == [["measure:1p2b_last4"], ["1p2b_last4/0"]]


def test_a_record_of_another_configuration_is_no_reason_not_to_train(frozen, tmp_path):
    recorded = tmp_path / "recorded" / "tiny"
    write_record(record_of("1p2b_bf16", "0" * 16), segment_path(recorded, "1p2b_bf16", 0))
    lease = file_of(tmp_path).lease(["1p2b_bf16"], frozen)
    assert lease.without_recorded(frozen, recorded).runs == ("1p2b_bf16",)


def record_of(run: str, run_hash: str) -> dict[str, object]:
    """The least that a record of a finished run holds."""
    done = {
        "run": run,
        "segment": 0,
        "run_hash": run_hash,
        "status": "completed",
        "final": {},
        "provenance": {},
    }
    return {
        "run": run,
        "segment": 0,
        "run_hash": run_hash,
        "done": done,
        "train": {},
        "validation": [],
        "events": [],
    }


def test_the_fewest_runs_a_gpu_hold_for_all(frozen, tmp_path):
    file = file_of(tmp_path, machine__per_gpu=2, leases__large__per_gpu=1)
    assert file.lease(["small"], frozen).machine(file.machine).per_gpu == 2
    assert file.lease(["small", "large"], frozen).machine(file.machine).per_gpu == 1


def test_an_unknown_name_is_told_with_the_nearest(frozen, tmp_path):
    with pytest.raises(ValueError, match=r"no lease or run 'smal'; did you mean 'small'\?"):
        file_of(tmp_path).lease(["large", "smal"], frozen)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine__gpuss": 1}, "unknown key 'machine.gpuss'; did you mean 'gpus'?"),
        ({"machine__gpus": 0}, "machine.gpus: Input should be greater than 0, found 0"),
        ({"rates__start_second": 1}, "unknown key 'rates.start_second'; did you mean 'start_seconds'?"),
        ({"leasess": {}}, "unknown key 'leasess'; did you mean 'leases'?"),
        ({"leases__small__run": []}, "unknown key 'leases.small.run'; did you mean 'runs'?"),
        ({"minutes": "abc"}, "minutes: Input should be a valid number"),
        ({"minutes": 0}, "minutes: Input should be greater than 0"),
        ({"tier": "tinny"}, "tier: no tier 'tinny' in configs/tiers; did you mean 'tiny'?"),
        ({"leases__small__sweep": True}, "leases.small: a lease has either `sweep: true` or `runs`"),
        (
            {"leases__small__measure": ["12b_fp8"]},
            "leases.small: measure names '12b_fp8', which is not among",
        ),
        ({"leases__small__runs": ["1p2b_bf61"], "leases__small__measure": []}, "did you mean '1p2b_bf16'?"),
        ({"leases__large__runs": ["1p2b_bf16", "12b_fp8"]}, "1p2b_bf16 stands in"),
        ({"leases__rates": {"sweep": True}}, "leases.rates.sweep: tier tiny has no sweep"),
    ],
)
def test_what_a_file_may_not_say_is_one_line_with_file_and_key(changes, words, tmp_path):
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        file_of(tmp_path, **changes)
    said = str(raised.value)
    assert said.startswith(f"{tmp_path / 'file.yaml'}: ")
    assert "\n" not in said


def test_broken_yaml_is_one_line(tmp_path):
    (tmp_path / "file.yaml").write_text("tier: [tiny\nminutes: 3\n")
    with pytest.raises(ValueError, match=r"file.yaml: not valid YAML: [^\n]*$"):
        load_campaign(tmp_path / "file.yaml")


def refreeze(path: Path, target: Path, **change: int) -> tuple[str, str]:
    """A frozen run as another configuration would have made it; returns the hashes before and after."""
    content = yaml.safe_load(path.read_text())
    changed = content | change
    changed["run_hash"] = run_hash_of(changed)
    target.write_text(yaml.safe_dump(changed))
    return content["run_hash"], changed["run_hash"]


@pytest.mark.parametrize("named", ["12b_nvfp4", "12b_without_sr"])
def test_a_run_frozen_from_an_older_configuration_is_refused_before_it_is_trained(named, tmp_path):
    freeze_all(load("tiny"), tmp_path)
    frozen = tmp_path / "runs"
    file = file_of(tmp_path)
    file.lease([named], frozen)
    path = frozen / "12b_nvfp4" / "0" / "run.yaml"  # 12b_without_sr continues this segment
    now, then = refreeze(path, path, seed=7)
    words = rf"12b_nvfp4/0: frozen from another configuration \({then}\) than configs holds now \({now}\)"
    with pytest.raises(ValueError, match=f"{words}; `repro freeze"):
        file.lease([named], frozen)
    assert file.lease(["1p2b_bf16"], frozen).runs == ("1p2b_bf16",), "the others may be trained"


def test_a_fork_of_another_state_of_its_parent_is_no_task(tmp_path):
    freeze_all(load("tiny"), tmp_path)
    path = tmp_path / "runs" / "12b_nvfp4" / "0" / "run.yaml"
    refreeze(path, path, seed=7)
    with pytest.raises(ValueError, match="12b_without_sr/0: continues 12b_nvfp4/0 of another configuration"):
        tasks_of(tmp_path / "runs", ["12b_without_sr"])


def test_a_segment_that_is_not_frozen_is_named(tmp_path):
    freeze_all(load("tiny"), tmp_path)
    (tmp_path / "runs" / "12b_nvfp4" / "3" / "run.yaml").unlink()
    with pytest.raises(ValueError, match=r"12b_nvfp4/3: not frozen; `repro freeze --tier tiny` writes it"):
        file_of(tmp_path).lease(["12b_nvfp4"], tmp_path / "runs")


def test_a_segment_that_the_configuration_no_longer_has_is_refused(tmp_path):
    freeze_all(load("tiny"), tmp_path)
    frozen = tmp_path / "runs"
    first, second = (frozen / "1p2b_bf16" / number / "run.yaml" for number in "01")
    second.parent.mkdir()
    refreeze(first, second, segment=1)
    with pytest.raises(
        ValueError, match=r"1p2b_bf16/1: left over from an earlier configuration.*; delete it"
    ):
        file_of(tmp_path).lease(["small"], frozen)


def test_a_sweep_has_the_rates_of_the_configuration_and_needs_them_frozen(tmp_path):
    file = load_campaign(Path("configs/campaign/proxy.yaml"))
    (tmp_path / "8b_rate_9em9").mkdir()
    with pytest.raises(ValueError, match=r"no frozen run '.*_rate_.*`repro freeze --tier proxy`"):
        file.lease(["sweep"], tmp_path)
    freeze_all(load("proxy"), tmp_path / "proxy")
    (tmp_path / "proxy" / "runs" / "8b_rate_9em9").mkdir()
    assert set(file.lease(["sweep"], tmp_path / "proxy" / "runs").runs) == set(load("proxy").sweep)
