"""What is told of a frozen run that does not hold what it has to, at the top or in a section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from small_segment import STEP_TOKENS, freeze

from repro.cluster.frozen import load_segment
from repro.experiments import freeze_all, load
from repro.portable.frozen import load_frozen

CONFIGS = Path(__file__).parents[2] / "configs"
PARENT = {"run": "run", "segment": 0, "run_hash": "0" * 16, "tokens": 8 * STEP_TOKENS}


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=re.escape(str(path))) as told:
        load_frozen(path)
    assert "\n" not in str(told.value)
    return str(told.value).removeprefix(f"{path}: ")


@pytest.fixture
def edited(tmp_path):
    """edited(section, change): the file with `change` applied to a section of its content, or (None) to the whole."""

    def edit(section: str | None, change) -> Path:
        path = freeze(tmp_path / "run", start=8, parent=PARENT)
        content = yaml.safe_load(path.read_text())
        change(content[section] if section else content)
        path.write_text(yaml.safe_dump(content))
        return path

    return edit


@pytest.mark.parametrize(
    ("section", "key", "typo"),
    [
        ("schedule", "end_tokens", "end_token"),
        ("optimizer", "weight_decay", "weight_decoy"),
        ("data", "phases", "phase"),
        ("validation", "every_tokens", "every"),
        ("checkpoints", "keep_last", "keep_lost"),
        ("divergence", "rise_nats", "rise_nat"),
        ("init_from", "run_hash", "runhash"),
        ("model", "hidden_size", "hiden_size"),
        ("recipe", "wgrad", "wgard"),
    ],
)
def test_a_key_of_a_section_that_is_missing_misspelt_or_too_much_is_named(section, key, typo, edited):
    misspelt = edited(section, lambda found: found.update({typo: found.pop(key)}))
    told = refused(misspelt)
    assert told.startswith(f"{section}: ")
    assert f"unknown key {typo!r}; did you mean {key!r}?" in told
    assert f"key {key!r} is missing" in told
    assert refused(edited(section, lambda found: found.pop(key))) == f"{section}: key {key!r} is missing"
    assert refused(edited(section, lambda found: found.update({typo: 1}))) == (
        f"{section}: unknown key {typo!r}; did you mean {key!r}?"
    )


def test_a_key_deep_in_a_section_is_named(edited):
    path = edited("data", lambda data: data["phases"][1].update(until_token=4))
    assert refused(path) == "data: unknown key 'phases.1.until_token'; did you mean 'until_tokens'?"


def test_a_value_of_another_kind_is_told(edited):
    path = edited("schedule", lambda schedule: schedule.update(decay_shape="cosin", batch_sequences="four"))
    told = refused(path)
    assert "batch_sequences: Input should be a valid integer" in told
    assert "decay_shape: 'cosin' is no valid value; did you mean 'cosine'?" in told


@pytest.mark.parametrize(
    ("section", "key", "value", "told"),
    [
        ("schedule", "learning_rate_max", "1e-3", "Input should be a valid number, found '1e-3'"),
        ("schedule", "batch_sequences", "4", "Input should be a valid integer, found '4'"),
        ("schedule", "batch_sequences", 4.0, "Input should be a valid integer, found 4.0"),
        ("optimizer", "weight_decay", float("inf"), "Input should be a finite number, found inf"),
        ("divergence", "rise_nats", float("nan"), "Input should be a finite number, found nan"),
    ],
)
def test_a_number_that_trainers_could_not_use_is_told(section, key, value, told, edited):
    """They read the file's own content: YAML takes 1e-3, without a point, for a word."""
    path = edited(section, lambda found: found.update({key: value}))
    assert refused(path) == f"{section}: {key}: {told}"


def test_a_word_in_a_list_of_numbers_is_told(edited):
    path = edited("checkpoints", lambda found: found.update(keep_tokens=["8"]))
    assert refused(path) == "checkpoints: keep_tokens.0: Input should be a valid integer, found '8'"


@pytest.mark.parametrize(
    ("key", "typo"),
    [
        ("optimizer", "optimiser"),
        ("init_from", "init_form"),
        ("run_hash", "runhash"),
        ("seed", "sead"),
        ("family", "familly"),
    ],
)
def test_a_misspelt_key_at_the_top_is_named_and_so_is_one_too_many(key, typo, edited):
    assert refused(edited(None, lambda content: content.update({typo: content.pop(key)}))) == (
        f"unknown key {typo!r}; did you mean {key!r}?; missing {key}"
    )
    assert refused(edited(None, lambda content: content.update({typo: 1}))) == (
        f"unknown key {typo!r}; did you mean {key!r}?"
    )


@pytest.mark.parametrize("read", [load_frozen, load_segment])
def test_a_misspelt_backend_is_named_before_the_wrong_one_is_taken(read, edited):
    """Without that key the run would be the portable trainer's."""
    path = edited(None, lambda content: content.update(backnd=content.pop("backend")))
    with pytest.raises(ValueError, match=re.escape(f"{path}: unknown key 'backnd'; did you mean 'backend'?")):
        read(path)


def test_a_key_like_none_that_is_known_is_told_with_those(edited):
    told = refused(edited(None, lambda content: content.update({7: 1})))
    assert told.startswith("unknown key 7; known: run, segment, tier, family, run_hash, seed, init_from, ")


@pytest.mark.parametrize("tier", ["tiny", "proxy", "paper"])
def test_every_frozen_run_of_a_tier_is_taken(tier, tmp_path):
    paths = freeze_all(load(tier, configs_dir=CONFIGS), tmp_path)
    for path in paths:
        backend = yaml.safe_load(path.read_text())["backend"]
        assert (load_segment if backend == "cluster" else load_frozen)(path).path == path
    assert paths


def test_sections_that_hold_what_they_have_to_are_taken(edited):
    assert load_frozen(edited("schedule", lambda schedule: None)).content["init_from"] == PARENT


def test_a_frozen_run_that_lacks_a_section_is_named(tmp_path):
    path = freeze(tmp_path / "run")
    content = yaml.safe_load(path.read_text())
    del content["optimizer"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=r"run\.yaml: missing optimizer"):
        load_frozen(path)


def test_a_segment_ends_after_its_start_and_within_the_horizon(tmp_path):
    for start, end in ((0, 21), (5, 5), (6, 5)):
        path = freeze(tmp_path / f"{start}_{end}", start=start, end=end)
        with pytest.raises(ValueError, match="needs start_tokens < end_tokens <= horizon_tokens"):
            load_frozen(path)


def test_another_backends_run_is_refused(tmp_path):
    path = freeze(tmp_path / "run", backend="cluster")
    with pytest.raises(ValueError, match="backend is 'cluster', not 'portable'"):
        load_frozen(path)


def test_a_run_that_was_changed_after_it_was_frozen_is_refused(edited):
    """It would have gone on from the checkpoints of the run as it was, or counted as trained."""
    path = edited("schedule", lambda schedule: schedule.update(learning_rate_max=0.5))
    was = yaml.safe_load(path.read_text())["run_hash"]
    assert re.fullmatch(
        rf"run_hash is {was}, but what the file holds has [0-9a-f]{{16}}: it was changed after it was frozen; "
        "change configs/ instead, and freeze again",
        refused(path),
    )
