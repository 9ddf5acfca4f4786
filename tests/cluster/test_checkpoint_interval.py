"""How often the paper tier saves, in time: a checkpoint stops every GPU of a run."""

from repro.workflow.resources import expected_minutes


def test_runs_save_often_enough_to_lose_little_and_seldom_enough_to_cost_little(paper):
    """10 to 60 minutes apart at the tier's rates; one share of the horizon is 19 minutes of 12B and 1 of 1.2B."""
    for name, run in paper.runs.items():
        for index, segment in enumerate(run.segments):
            saves = segment.num_tokens / segment.frozen["checkpoints"]["every_tokens"]
            between = expected_minutes(paper, name, index) / saves
            assert 10 < between < 60, f"{name}: {between:.1f} minutes"
