"""One file a site: what it refuses, what jobs ask for by it, and that no site word stands anywhere else."""

from __future__ import annotations

import errno
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from repro.cluster.layout import load_layout
from repro.experiments import load
from repro.workflow.ranks import free_port
from repro.workflow.resources import JobResources, expected_minutes
from repro.workflow.site import Site
from repro.workflow.slurm_job import SlurmJob, is_away
from repro.workflow.tries import SegmentFiles, Tries

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "slurm/examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def paper():
    return load("paper", configs_dir=ROOT / "configs")


def site(**changes: object) -> Site:
    content = yaml.safe_load((ROOT / "slurm/site.yaml").read_text())
    return Site.model_validate({**content, **changes})


@pytest.mark.parametrize("path", [ROOT / "slurm/site.yaml", *EXAMPLES], ids=lambda path: path.stem)
def test_every_site_file_is_whole_and_fits_the_paper_s_runs(path, paper):
    jobs = JobResources(paper, Site.load(path), str(path))
    for segment in paper.segments:
        asked = jobs.segment(segment.run, segment.index)
        wanted = segment.resources
        assert asked["nodes"] * asked["gpus_per_node"] == wanted.nodes * wanted.gpus_per_node
        assert 15 < asked["runtime"] <= jobs.site.time_limit_minutes
        assert asked["mem_mb"] <= 1000 * jobs.site.memory_gb_per_node
        assert asked["asked"].endswith("B of checkpoints expected)")
        validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(**asked)))
        layout = load_layout(jobs.site.environment["REPRO_CLUSTER_LAYOUT"], ROOT / "configs/cluster")
        assert layout.gpus_per_node == jobs.site.gpus_per_node
        assert layout.spread(paper.run(segment.run).family).nodes == asked["nodes"]


def test_a_mistyped_key_is_named_with_the_nearest(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text((ROOT / "slurm/site.yaml").read_text().replace("account:", "acount:"))
    with pytest.raises(ValueError, match=r"site.yaml: unknown key 'acount'; did you mean 'account'"):
        Site.load(path)


def test_a_warning_longer_than_the_job_is_refused(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text(
        (ROOT / "slurm/site.yaml").read_text().replace("warn_seconds: 300", "warn_seconds: 90000")
    )
    with pytest.raises(ValueError, match="warn_seconds"):
        Site.load(path)


def test_gpus_fill_whole_nodes():
    assert site(gpus_per_node=8).shape(368) == (46, 8)
    assert site(gpus_per_node=4).shape(368) == (92, 4)
    assert site(gpus_per_node=8).shape(2) == (1, 2)
    with pytest.raises(ValueError, match="368 GPUs don't fill nodes of 72"):
        site(gpus_per_node=72).shape(368)


def test_only_jobs_of_several_nodes_ask_for_whole_nodes_in_segments_of_a_rack(paper):
    """--segment=4 is refused for fewer nodes, and one GPU's job would block four."""
    path = ROOT / "slurm/examples/gb200_nvl72.yaml"
    jobs = JobResources(paper, Site.load(path), str(path))
    for segment in paper.segments:
        asked = jobs.segment(segment.run, segment.index)
        assert asked["slurm_extra"] == "--open-mode=append --exclusive --segment=4"
        assert asked["nodes"] % 4 == 0
    assert jobs.rule("gpu", memory_gb=1, minutes=5)["slurm_extra"] == "--open-mode=append"


def test_without_a_site_jobs_carry_nothing_of_slurm(paper):
    jobs = JobResources(paper, None)
    assert jobs.segment("12b_nvfp4", 0)["launch"] == ""
    rule = jobs.rule("gpu", memory_gb=1, minutes=5)
    assert rule == {"launch": "", "asked": "", "mem_mb": 1000, "runtime": 5}


def test_a_job_that_looks_at_checkpoints_asks_for_the_model_s_memory_and_to_go_on(paper):
    """12.31e9 parameters: 14 bytes each in the file, 4 in the model, 4 in its copy; 6 GB of libraries."""
    jobs = JobResources(paper, site(), "slurm/site.yaml")
    wildcards = SimpleNamespace(run="12b_nvfp4")
    asked = {name: of_run(wildcards) for name, of_run in jobs.checkpoints(minutes=240, keeps="kept:").items()}
    assert asked["mem_mb"] == pytest.approx(1000 * (6 + 12.31 * 22), rel=0.001)
    assert asked["gres"] == "gpu:1"
    assert "--keeps kept: -- " in asked["launch"]
    assert asked["asked"] == " (1 node x 1 GPU, 277 GB a node, 240 minutes a job)"


def test_measuring_rates_asks_for_what_loading_its_libraries_takes_in_two_processes(paper):
    """Transformer Engine's products are timed by a process of their own, while the first one waits."""
    asked = JobResources(paper, site(), "slurm/site.yaml").rates()
    assert asked["asked"] == " (1 node x 1 GPU, 12 GB a node, 30 minutes a job)"
    assert asked["cpus_per_task"] == 32


def test_the_time_of_a_job_follows_from_the_run_by_hand(paper):
    """12B: 6ND says 6 x 12e9 x 3.43e12 = 2.5e23 for segment 0; attention and scan add some per cent."""
    segment = paper.segment("12b_nvfp4", 0)
    rate = paper.spec.cost.flops_per_second["nvfp4"]
    by_hand = 6 * 12e9 * segment.num_tokens / rate / (92 * 4) / 60
    assert expected_minutes(paper, "12b_nvfp4", 0) == pytest.approx(by_hand, rel=0.15)


def test_a_site_without_four_bit_products_is_given_the_time_of_emulation(paper):
    rates = paper.spec.cost.flops_per_second
    native, emulated = (expected_minutes(paper, "12b_nvfp4", 0, emulate=emulate) for emulate in (False, True))
    assert emulated / native == pytest.approx(rates["nvfp4"] / rates["emulated"])
    fourth = [expected_minutes(paper, "12b_rht4", 0, emulate=emulate) for emulate in (False, True)]
    assert fourth[0] == fourth[1], "no native path anywhere"
    emulating = site(environment={"REPRO_CLUSTER_EMULATE": 1})
    asked = [JobResources(paper, one, "x").segment("12b_nvfp4", 0)["asked"] for one in (site(), emulating)]
    assert asked[0] != asked[1]


def test_no_site_word_outside_of_the_site_s_files():
    """Values that differ between clusters, and names that only some have, stand in slurm/*.yaml alone."""
    words = [
        "NCCL_",
        "GLOO_SOCKET",
        "mlx5",
        "gb200_nvl72",
        "--account",
        "--partition",
        "pyxis",
        "sqsh",
        "module load",
    ]
    for path in EXAMPLES:
        content = yaml.safe_load(path.read_text())
        words += [content.get("account"), *content.get("environment", {}), *content.get("setup", [])]
    words = [word for word in words if word not in (None, "OMP_NUM_THREADS", "REPRO_CLUSTER_LAYOUT")]
    allowed = {"repro/workflow/site.py"}  # turns `tool: pyxis` into its options
    found = []
    for folder in ("repro", "configs", "paper_figures"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix not in (".py", ".smk", ".yaml") or name in allowed or "corpora" in name:
                continue
            text = path.read_text(encoding="utf-8")
            found += [f"{name}: {word}" for word in words if word in text]
    for name in ("Snakefile", "slurm/config.yaml", "slurm/workflow.yaml"):
        text = (ROOT / name).read_text()
        found += [f"{name}: {word}" for word in words if word in text]
    assert not found, "\n".join(found)


def test_the_profile_names_no_partition_account_or_time():
    text = re.sub(r"#.*", "", (ROOT / "slurm/config.yaml").read_text())
    assert not re.search(r"partition|account|runtime|mem_mb|gres", text)


@pytest.mark.parametrize(
    ("tres", "gpus"), [("gres:gpu:4", 4), ("gres/gpu:4", 4), ("gres/gpu:h100:8", 8), ("gres:gpu:b200:2", 2)]
)
def test_a_job_s_shape_in_the_words_of_several_slurms(tres, gpus):
    line = f"JobId=12 JobName=x NumNodes=2 NumCPUs=16 NodeList=n[1-2] EndTime=2026-01-02T03:04:05 TresPerNode={tres}"
    job = SlurmJob.parse(line)
    assert (job.num_nodes, job.cpus_per_node, job.gpus_per_node) == (2, 8, gpus)
    assert SlurmJob.parse(line.replace("2026-01-02T03:04:05", "Unknown")).end is None


def test_a_refusal_is_no_absence():
    assert is_away("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    assert not is_away("slurm_update error: Access/permission denied")
    assert not is_away("slurm_update error: Invalid job id specified")


def test_jobs_that_share_a_node_get_other_ports():
    port = free_port(1234)
    assert port != free_port(1235)
    with socket.socket() as taken:
        taken.bind(("", port))
        assert free_port(1234) == port + 1


def test_a_file_system_without_locks_is_an_error_and_not_another_job(tmp_path, monkeypatch):
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    files = SegmentFiles.of(
        tmp_path / "run.yaml", {"run": "a", "segment": 0, "run_hash": "h"}, tmp_path / "state"
    )
    with pytest.raises(ValueError, match="cannot lock files"):
        Tries(files, job="1", invocation="first")


def test_tries_count_only_without_progress_and_only_of_one_invocation(tmp_path):
    frozen = tmp_path / "tiny/runs/a/0/run.yaml"
    files = SegmentFiles.of(frozen, {"run": "a", "segment": 0, "run_hash": "h"}, tmp_path / "tiny/state")

    def one_try(job: str, invocation: str, *, step: int | None = None, ends: bool = True) -> str | None:
        tries = Tries(files, job=job, invocation=invocation)
        refused = tries.begin(limit=2)
        if step is not None:
            (files.state / f"step_{step:08d}").mkdir()
        if ends and not refused:
            tries.end("error: boom")
        tries.release()
        return refused

    assert one_try("1", "first") is None
    assert one_try("1", "first", step=10) is None
    assert one_try("1", "first") is None
    assert one_try("1", "first", ends=False) is None, "one try without progress since step 10"
    assert "no progress in 2 tries, at step 10: job 1 ended without a word" in one_try("2", "first")
    assert "no progress in 2 tries" in one_try("3", "first"), (
        "a retry of the same invocation is refused at once"
    )
    assert one_try("4", "second") is None, "another invocation begins at nought"
    assert "ended without a word" in files.history.read_text()
