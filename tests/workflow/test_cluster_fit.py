"""A site's file that names a layout which cannot train the tier's runs is refused before anything is submitted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from repro.experiments import load
from repro.workflow.cluster_fit import check_fit
from repro.workflow.site import Site

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ROOT / "configs" / "cluster"
SITE = yaml.safe_load((ROOT / "slurm" / "site.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _nothing_inherited(monkeypatch):
    for name in ("REPRO_CLUSTER_LAYOUT", "REPRO_CLUSTER_EMULATE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def paper():
    return load("paper", configs_dir=ROOT / "configs")


def site(gpus_per_node: int = 8, **environment: object) -> Site:
    return Site.model_validate({**SITE, "gpus_per_node": gpus_per_node, "environment": environment})


@pytest.mark.parametrize(
    "path", [ROOT / "slurm/site.yaml", *sorted((ROOT / "slurm/examples").glob("*.yaml"))]
)
def test_the_sites_that_come_with_the_project_train_every_run(path, paper):
    check_fit(paper, Site.load(path), str(path), layouts=LAYOUTS)


def test_hopper_trains_every_run_when_it_emulates(paper):
    emulating = site(REPRO_CLUSTER_LAYOUT="h200x8", REPRO_CLUSTER_EMULATE=1)
    check_fit(paper, emulating, "site.yaml", layouts=LAYOUTS)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"REPRO_CLUSTER_LAYOUT": "b200x9"},
            "REPRO_CLUSTER_LAYOUT: no layout 'b200x9' .* did you mean 'b200x8'",
        ),
        ({"REPRO_CLUSTER_LAYOUT": "gb200"}, "gpus_per_node: 8, but layout gb200 .* nodes of 4"),
        (
            {"REPRO_CLUSTER_LAYOUT": "h200x8"},
            "run 12b_nvfp4: .*native NVFP4 needs .*REPRO_CLUSTER_EMULATE: 1",
        ),
        ({"REPRO_CLUSTER_LAYUOT": "b200x8"}, "REPRO_CLUSTER_LAYUOT'; did you mean 'REPRO_CLUSTER_LAYOUT'"),
        ({"REPRO_CLUSTER_LAYOUT": "b200x8", "REPRO_CLUSTER_EMULATE": True}, "'True' is neither 0 nor 1"),
    ],
)
def test_what_does_not_fit_is_told_with_file_and_key(environment, message, paper):
    with pytest.raises(ValueError, match=f"^site.yaml: .*{message}"):
        check_fit(paper, site(**environment), "site.yaml", layouts=LAYOUTS)


def test_a_layout_that_splits_a_model_into_sizes_without_a_product_is_told(paper, tmp_path):
    content = yaml.safe_load((LAYOUTS / "b200x8.yaml").read_text(encoding="utf-8"))
    content["families"]["12b"]["tensor"] = 4
    (tmp_path / "b200x8.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"site.yaml: run 12b_nvfp4: .*N = 5672 is no multiple of 32"):
        check_fit(paper, site(REPRO_CLUSTER_LAYOUT="b200x8"), "site.yaml", layouts=tmp_path)


def test_a_tier_of_the_portable_backend_has_no_layout():
    check_fit(
        load("tiny", configs_dir=ROOT / "configs"), site(REPRO_CLUSTER_LAYOUT="x"), "s", layouts=LAYOUTS
    )


@pytest.mark.workflow
def test_a_dry_run_is_refused_in_one_line(project):
    shutil.copytree(ROOT / "slurm", project.folder / "slurm")
    project.edit("slurm/site.yaml", "REPRO_CLUSTER_LAYOUT: b200x8", "REPRO_CLUSTER_LAYOUT: b200")
    done = project.snakemake("--dry-run", "all", "--profile", "slurm")
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "slurm/site.yaml: environment.REPRO_CLUSTER_LAYOUT: no layout 'b200'" in output
    assert "Traceback" not in output
