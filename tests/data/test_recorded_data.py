"""Recorded data made again when apt has none of its packages any more, and what is said when it can't be made."""

import hashlib
import json
import random
import re
import shutil
from pathlib import Path

import pytest
import yaml

from repro.data import snapshot
from repro.data.__main__ import main, recorded_folder
from repro.data.manifest import MANIFEST, read_manifest
from repro.data.recorded_data import RecordedData
from repro.experiments.data_spec import load_data_spec

CONFIG = Path(__file__).parents[2] / "configs" / "data" / "proxy.yaml"


def text_of(language: str) -> str:
    """About 300 kB; paragraphs of invented words."""
    rng = random.Random(language)
    words = ["".join(rng.choices("abdegiklmnorstu", k=rng.randint(2, 9))) for _ in range(3000)]
    return "\n\n".join(" ".join(rng.choices(words, k=40)) for _ in range(900))


def descriptions(language: str) -> dict:
    options = {"registry": "debian-descriptions", "package": language, "files": ["*"], "extract": "text"}
    return {
        "name": f"descriptions_{language}",
        "category": "multilingual" if language != "en" else "crawl",
        "kind": "archive",
        "version": "newest in Debian 12",
        "licence": "x",
        "origin": f"descriptions, {language}",
        "options": options,
    }


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    content = {
        "name": "old",
        "seed": 1,
        "tokenizer": {"vocab_size": 300, "train_bytes": 20_000},
        "hold_out": {"fraction": 0.1, "salt": "old-1"},
        "sources": [descriptions(language) for language in ("en", "de", "fr")],
        "blends": {"all": [{"until_fraction": 1.0, "blend": {"crawl": 1, "multilingual": 1}}]},
    }
    path = tmp_path_factory.mktemp("config") / "old.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recorded(config, tmp_path_factory) -> Path:
    """The folder of records, of data that was prepared when there still were such packages."""
    then = tmp_path_factory.mktemp("then")
    for language in ("en", "de", "fr"):
        file = then / "downloads" / "debian-descriptions" / language / f"Translation-{language}.text"
        file.parent.mkdir(parents=True)
        file.write_text(text_of(language), encoding="utf-8")
    assert main([str(config), "--out", str(then / "data"), "--recorded", "none"]) == 0
    (then / "recorded" / "old").mkdir(parents=True)
    shutil.copyfile(then / "data" / MANIFEST, then / "recorded" / "old" / "data_manifest.json")
    return then / "recorded"


@pytest.fixture
def prepare(config, recorded, archive, tmp_path):
    """The command, on a machine whose apt has no Debian 12, beside an archive that has all."""
    for language in ("en", "de", "fr"):
        archive.add_descriptions(language, text_of(language))
    return lambda *more: main(
        [str(config), "--out", str(tmp_path / "data"), "--recorded", str(recorded), *more]
    )


def test_the_recorded_data_is_made_again_from_the_archive(prepare, recorded, tmp_path, capsys):
    assert prepare() == 0
    assert (tmp_path / "data" / MANIFEST).read_bytes() == (
        recorded / "old" / "data_manifest.json"
    ).read_bytes()
    assert "it is the recorded data: its manifest is" in capsys.readouterr().out.splitlines()[-1]
    assert prepare() == 0
    assert "it is the recorded data" in capsys.readouterr().out, (
        "a folder that was there is held against it too"
    )


def test_a_source_that_is_gone_is_told_with_its_share_and_can_be_left_out(
    prepare, archive, recorded, tmp_path, capsys
):
    path = archive.add_descriptions("fr", "other text")
    assert prepare() == 2
    [line] = capsys.readouterr().err.splitlines()
    # en is one category's tokens, de and fr share the other's
    manifest = json.loads((recorded / "old" / "data_manifest.json").read_text())
    tokens = {name: sides["train"]["tokens"] for name, sides in manifest["categories"].items()}
    size = {source["name"]: source["text_bytes"] for source in manifest["sources"]}
    part = size["descriptions_fr"] / (size["descriptions_de"] + size["descriptions_fr"])
    share = f"about {100 * part * tokens['multilingual'] / sum(tokens.values()):.1f} % of"
    assert f"1 of 3 sources cannot be had, {share} the recorded training tokens" in line
    assert "fr Translation-fr.text (SHA-256 " in line
    assert "no Debian 12" in line or "apt-get update for Translation-fr failed" in line
    assert "gave another file" in line
    assert "--without descriptions_fr prepares the rest" in line
    assert not (tmp_path / "data").exists()
    asked = archive.asked.copy()

    assert prepare("--without", "descriptions_fr") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "it is NOT the recorded data" in last
    assert f"1 of 3 sources missing ({share} its training tokens): descriptions_fr" in last
    assert [source["name"] for source in read_manifest(tmp_path / "data")["sources"]] == [
        "descriptions_en",
        "descriptions_de",
    ]
    assert archive.asked == asked, "what had been fetched was fetched again"

    before = (tmp_path / "data" / MANIFEST).read_bytes()
    assert prepare() == 2
    assert (tmp_path / "data" / MANIFEST).read_bytes() == before, "what was prepared went with a failed fetch"
    assert path in archive.asked


def test_other_text_is_told(prepare, config, tmp_path, capsys):
    for language in ("en", "de", "fr"):
        file = tmp_path / "downloads" / "debian-descriptions" / language / f"Translation-{language}.text"
        file.parent.mkdir(parents=True)
        file.write_text(text_of(language if language != "de" else "nl"), encoding="utf-8")
    assert main([str(config), "--out", str(tmp_path / "data"), "--recorded", "none"]) == 0
    assert "recorded data" not in capsys.readouterr().out
    assert prepare() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "it is NOT the recorded data" in last
    assert "1 of 3 sources of other text (about " in last
    assert last.count("descriptions_") == 1
    assert "descriptions_de" in last


def test_a_missing_network_ends_it_at_once(prepare, monkeypatch, capsys):
    monkeypatch.setattr(snapshot, "URL", "http://127.0.0.1:1")
    assert prepare() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: source descriptions_en: en Translation-en.text: ")
    assert line.endswith("Is the network there? What was fetched is kept: start the same command again")


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        (["description_fr"], "no source 'description_fr' to leave out; did you mean 'descriptions_fr'"),
        (["descriptions_en"], "without descriptions_en: .*no source has category 'crawl'"),
    ],
)
def test_what_cannot_be_left_out_is_told(left_out, told, prepare, capsys):
    assert prepare(*(word for name in left_out for word in ("--without", name))) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(told, line)


def test_another_version_of_what_is_installed_is_told_before_anything_is_read(
    prepare, recorded, tmp_path, capsys
):
    content = json.loads((recorded / "old" / "data_manifest.json").read_text())
    content["sources"][1]["version"] = "Debian 11"
    other = tmp_path / "recorded" / "old" / "data_manifest.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(content))
    assert prepare("--recorded", str(tmp_path / "recorded")) == 0
    lines = capsys.readouterr().out.splitlines()
    told = "data: descriptions_de: newest in Debian 12, of the recorded data Debian 11: it will be other data"
    assert lines.index(told) < lines.index(next(line for line in lines if "documents" in line))
    assert "it is NOT the recorded data" in lines[-1]
    assert "the sources' texts are equal, what was made of them is not" in lines[-1]


def test_a_damaged_record_is_told(prepare, config, recorded, tmp_path, capsys):
    damaged = tmp_path / "recorded" / "old" / "data_manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes((recorded / "old" / "data_manifest.json").read_bytes()[:-100])
    out = ["--out", str(tmp_path / "data"), "--recorded", str(tmp_path / "recorded")]
    assert main([str(config), *out]) == 2
    assert "data_manifest.json: truncated or altered" in capsys.readouterr().err


def test_records_lie_beside_configs_unless_said(tmp_path):
    assert recorded_folder(None, "configs/data/proxy.yaml") == Path("recorded")
    assert recorded_folder(None, "/x/configs/data/proxy.yaml") == Path("/x/recorded")
    assert recorded_folder(str(tmp_path), "configs/data/proxy.yaml") == tmp_path
    assert recorded_folder("none", "configs/data/proxy.yaml") is None
    with pytest.raises(ValueError, match="--recorded no_such: no such folder"):
        recorded_folder("no_such", "configs/data/proxy.yaml")


def test_every_fetched_source_of_the_proxy_tier_is_held_to_a_file():
    spec = load_data_spec(CONFIG)
    record = RecordedData.find(CONFIG.parents[2] / "recorded", spec)
    pins = record.pins(spec)
    fetched = [source for source in spec.sources if source.kind == "archive"]
    assert len(fetched) == 66
    for source in fetched:
        registry = source.options["registry"]
        assert (source.sha256 is None) == (source.name in pins) == registry.startswith("debian"), source.name
        if registry == "debian":
            package, version, _ = pins[source.name].file.replace("%3a", ":").split("_")
            assert (package, version) == (source.options["package"], pins[source.name].version)
    assert pins["vim_manual"].version == "2:9.0.1378-2+deb12u2"
    assert record.sha256 == hashlib.sha256(record.path.read_bytes()).hexdigest()
    assert record.tokens_per_cent(record.sources) == pytest.approx(100)
