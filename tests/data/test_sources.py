"""Sources and their configuration: what is read, and what is said when it can't be."""

import shutil

import pytest
import yaml

import repro.data.sources as sources
from repro.data.prepare import prepare
from repro.data.sources import read_source, version_of
from repro.experiments.data_spec import DataSpec, SourceSpec, load_data_spec


def source(**changes) -> SourceSpec:
    fields = {
        "name": "it",
        "category": "wiki",
        "kind": "embedded",
        "version": "1",
        "licence": "public domain",
        "origin": "a test",
        "options": {"file": "devils_dictionary.jsonl.xz"},
    }
    return SourceSpec(**fields | changes)


def test_every_source_of_the_tiny_tier_can_be_read(tiny_spec, tmp_path):
    for one in tiny_spec.sources:
        documents = read_source(one, tmp_path)
        assert len({d.name for d in documents}) == len(documents), f"{one.name}: two documents share a name"
        assert sum(len(d.text) for d in documents) > 100_000, f"{one.name}: hardly any text"
        assert version_of(one)


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_damaged_embedded_text_is_named(tiny_spec, tmp_path, monkeypatch, damage):
    one = next(s for s in tiny_spec.sources if s.name == "moby_dick")
    shutil.copy(sources.CORPORA / "moby_dick.jsonl.xz", tmp_path)
    path = tmp_path / "moby_dick.jsonl.xz"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-100] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setattr(sources, "CORPORA", tmp_path)
    with pytest.raises(
        ValueError, match=r"source moby_dick: .*moby_dick\.jsonl\.xz is (truncated or altered|missing)"
    ):
        read_source(one, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "embeded"}, "unknown kind 'embeded'; did you mean 'embedded'"),
        ({"options": {"fil": "x"}}, "source it: options do not fit kind 'embedded'"),
        ({"kind": "stdlib_code", "options": {"modules": ["no_such_*.py"]}}, "source it: not one document"),
        (
            {"kind": "package_docstrings", "options": {"package": "no_such_package", "folders": ["*.py"]}},
            "package 'no_such_package' is not installed",
        ),
    ],
)
def test_unreadable_sources_are_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        read_source(source(**changes), tmp_path)


def test_a_folder_of_text_files_is_read_one_document_a_file(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "z.txt").write_text("Last.", encoding="utf-8")
    (tmp_path / "b" / "z.txt").write_text("Erste Zeile:\nÄpfel.", encoding="utf-8")
    folder = source(kind="local_text", options={"files": [f"{tmp_path}/**"]})
    assert [(d.name, d.text) for d in read_source(folder, tmp_path)] == [
        (f"{tmp_path}/b/z.txt", "Erste Zeile:\nÄpfel."),
        (f"{tmp_path}/z.txt", "Last."),
    ]
    (tmp_path / "a.txt").write_bytes("Äpfel".encode("latin-1"))
    with pytest.raises(ValueError, match=r"source it: .*a\.txt is not UTF-8 text"):
        read_source(folder, tmp_path)


def test_one_file_of_text_is_refused_with_what_helps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the document's name is its path, and decides whether it is held out
    (tmp_path / "all.txt").write_text("\n\n".join(f"Paragraph {n}: {n * n}." for n in range(500)))
    phase = {"until_fraction": 1.0, "blend": {"wiki": 1}}
    spec = DataSpec(
        name="own",
        seed=1,
        sources=(source(kind="local_text", options={"files": ["*.txt"]}),),
        tokenizer={"vocab_size": 260, "train_bytes": 10_000},
        hold_out={"fraction": 0.08, "salt": "own-1"},
        blends={"two_phase": [phase]},
    )
    message = (
        r"category wiki: of 1 documents none is left for validation.*a share of 0\.08.*shorter documents"
    )
    with pytest.raises(ValueError, match=message):
        prepare(spec, tmp_path / "data", say=str)


@pytest.mark.parametrize("kind", ["local_text", "local_jsonl"])
@pytest.mark.parametrize(
    ("files", "message"),
    [(["no_such_*"], r"source it: no file matches no_such_\*"), ("x.txt", r"write files: \['x\.txt'\]")],
)
def test_local_files_that_are_not_there_are_named(tmp_path, kind, files, message):
    with pytest.raises(ValueError, match=message):
        read_source(source(kind=kind, options={"files": files}), tmp_path)


def test_missing_package_is_named_before_anything_is_read():
    missing = {"package": "no_such_package", "folders": ["*.py"]}
    with pytest.raises(ValueError, match="source it: package 'no_such_package' is not installed"):
        version_of(source(kind="package_docstrings", options=missing))


def test_embedded_texts_are_all_declared_and_licensed(tiny_spec):
    declared = {s.options["file"] for s in tiny_spec.sources if s.kind == "embedded"}
    present = {path.name for path in sources.CORPORA.glob("*.xz")}
    assert present == declared
    table = (sources.CORPORA / "README.md").read_text(encoding="utf-8")
    for name in present:
        assert name in table, f"corpora/README.md, the licence table, does not name {name}"


def test_phases_end_where_the_paper_says(tiny_spec):
    """Appendix A.1: 70/20/10 per cent of the tokens; A.2: 60/40."""
    phases = tiny_spec.phases_of_run("three_phase", horizon_tokens=1000 * 512, tokens_per_step=512)
    assert [phase["until_tokens"] for phase in phases] == [700 * 512, 900 * 512, 1000 * 512]
    phases = tiny_spec.phases_of_run("two_phase", horizon_tokens=100 * 512, tokens_per_step=512)
    assert [phase["until_tokens"] for phase in phases] == [60 * 512, 100 * 512]
    for phase in phases:
        assert sum(phase["blend"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("three_fase", 5120), "no blend 'three_fase'; did you mean 'three_phase'"),
        (("three_phase", 5000), "not a whole number of steps of 512"),
        (("three_phase", 1024), "too few for a phase"),
    ],
)
def test_impossible_phases_are_explained(tiny_spec, arguments, message):
    blend, horizon = arguments
    with pytest.raises(ValueError, match=message):
        tiny_spec.phases_of_run(blend, horizon_tokens=horizon, tokens_per_step=512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(tokeniser=c.pop("tokenizer")), r"'tokeni[sz]er'"),
        (
            lambda c: c["tokenizer"].update(vocab=1),
            "tokenizer: one trained on the text: unknown key 'vocab'; did you mean 'vocab_size'",
        ),
        (lambda c: c["sources"][0].update(license="x"), "did you mean 'licence'"),
        (
            lambda c: c["blends"]["two_phase"][1].update(until_fraction=0.9),
            "must rise strictly and end at 1.0",
        ),
        (lambda c: c["blends"]["two_phase"][0]["blend"].update(maths=3), "maths"),
        (lambda c: c["sources"][1].update(name=c["sources"][0]["name"]), "used twice"),
        (lambda c: c["hold_out"].update(fraction=0.7), "hold_out.fraction"),
        (lambda c: c.pop("seed"), "key 'seed' is missing"),
    ],
)
def test_wrong_configurations_are_named(tiny_spec, tmp_path, change, message):
    content = tiny_spec.model_dump(mode="json")
    change(content)
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        load_data_spec(path)
    assert "broken.yaml" in str(caught.value)


def test_missing_configuration_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no\.yaml: no such file"):
        load_data_spec(tmp_path / "no.yaml")


def test_a_key_that_stands_twice_is_refused(tiny_spec, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(yaml.safe_dump(tiny_spec.model_dump(mode="json")) + "seed: 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"twice\.yaml: line \d+: 'seed' is there twice"):
        load_data_spec(path)
