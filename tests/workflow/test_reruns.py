"""What runs again after a change, and what does not; the graphs of all tiers; bad configuration.

These tests start Snakemake (dry runs only) on a copy of the project whose results are empty files.
"""

import pytest

pytestmark = pytest.mark.workflow

CHECK = "comparing with the paper"


def steps(element: str) -> set[str]:
    return {f"collecting the data of {element}", f"drawing {element}", f"judging the claims of {element}"}


def trainings(jobs: set[str]) -> set[str]:
    return {job.removeprefix("training ") for job in jobs if job.startswith("training ")}


def test_nothing_to_do_when_all_is_there(project):
    assert project.dry_run("all") == set()


def test_a_changed_figure_redraws_that_figure_only(project):
    project.edit("paper_figures/fig10/figure.py", '"""', '"""Another word. ')
    assert project.dry_run("all") == steps("fig10") | {CHECK}


def test_a_changed_label_of_a_run_trains_nothing(project):
    project.edit(
        "configs/experiments/ablate_1p2b.yaml", "label: last 1 in BF16", "label: only the last in BF16"
    )
    assert not trainings(project.dry_run("all"))


def test_a_changed_run_trains_itself_only_and_redraws_what_shows_it(project):
    project.edit(
        "configs/experiments/ablate_1p2b.yaml", "bf16_blocks: last1\n", "bf16_blocks: {first: 1, last: 0}\n"
    )
    jobs = project.dry_run("all")
    assert trainings(jobs) == {"1p2b_last1, segment 0"}
    assert steps("fig9") <= jobs
    assert not steps("fig11") & jobs


def test_a_changed_parent_trains_its_forks_too(project):
    project.edit("configs/experiments/main_12b.yaml", "bf16_blocks: first2_last8", "bf16_blocks: last4")
    trained = trainings(project.dry_run("all"))
    assert "12b_nvfp4, segment 0" in trained
    assert "12b_without_sr, segment 0" in trained, "a fork stands on its parent's checkpoint"
    assert not [job for job in trained if job.startswith(("1p2b_", "8b_"))]


def test_a_changed_fork_leaves_its_parent_alone(project):
    project.edit("configs/experiments/ablate_12b.yaml", "hadamard: 128", "hadamard: 64")
    trained = trainings(project.dry_run("all"))
    assert trained == {"12b_rht128, segment 0"}


def test_an_element_asks_only_for_its_runs(project):
    project.edit("configs/experiments/ablate_12b.yaml", "hadamard: 128", "hadamard: 64")
    assert project.dry_run("fig12") >= {"training 12b_rht128, segment 0", "drawing fig12"}
    assert project.dry_run("fig13") == set()


@pytest.mark.parametrize("tier", ["proxy", "paper"])
def test_the_graph_of_the_other_tiers_is_whole(project, tier):
    jobs = project.dry_run("all", "--config", f"tier={tier}")
    segments = trainings(jobs)
    trained = {segment.split(",")[0] for segment in segments}
    assert {"12b_fp8", "12b_nvfp4", "12b_switch_both_99", "8b_mxfp4_1p5x", "1p2b_first4"} <= trained
    num_segments = len([segment for segment in segments if segment.startswith("12b_nvfp4,")])
    assert num_segments == 4, "12b_nvfp4 is cut where three others fork"


def test_an_unknown_tier_and_an_unknown_key_are_told_in_one_message(project):
    for arguments, expected in (
        (("all", "--config", "tier=tinny"), "tiny"),
        (("all", "--config", "teir=tiny"), "tier"),
    ):
        done = project.snakemake("--dry-run", *arguments)
        output = done.stdout + done.stderr
        assert done.returncode != 0
        assert expected in output
        assert "Traceback" not in output, output[-2000:]


def test_lint_has_one_known_remark(project):
    """Rules name no container or conda environment: the project installs one environment for all of them."""
    done = project.snakemake("--lint")
    remarks = {line.strip() for line in (done.stdout + done.stderr).splitlines() if line.startswith("    * ")}
    assert remarks <= {"* Specify a conda environment or container for each rule.:"}, remarks
