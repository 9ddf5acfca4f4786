"""recorded/proxy/data_manifest.json is the manifest of the recorded runs' data, and docs/proxy_corpus.md says it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from readme_text import ROOT, section

from repro.data.manifest import MANIFEST, manifest_sha256

RECORDED = ROOT / "recorded" / "proxy"
FILE = RECORDED / "data_manifest.json"
CONTENT = json.loads(FILE.read_text(encoding="utf-8"))
CORPUS = (ROOT / "docs" / "proxy_corpus.md").read_text(encoding="utf-8")
CAMPAIGN = (ROOT / "docs" / "campaign.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in CORPUS.splitlines()
    if line.startswith("| ") and (cells := line.strip("| ").split(" | "))
}


def test_it_is_the_manifest_whose_sum_the_records_name(tmp_path):
    shutil.copyfile(FILE, tmp_path / MANIFEST)
    with (RECORDED / "runs.csv").open(encoding="utf-8") as file:
        named = {row["data_sha256"] for row in csv.DictReader(file)}
    assert named == {manifest_sha256(tmp_path)[:16]}


@pytest.mark.parametrize("source", CONTENT["sources"], ids=lambda source: source["name"])
def test_the_corpus_page_lists_every_source_as_it_was_found(source):
    megabytes = f"{source['text_bytes'] / 1e6:.1f}"
    found = source.get("file") or source["version"]
    expected = [source["category"], source["origin"], found, source["licence"], megabytes]
    assert ROWS[source["name"]] == expected


def test_the_corpus_page_counts_documents_and_tokens_of_every_category():
    assert len(CONTENT["categories"]) == 8
    for name, sides in CONTENT["categories"].items():
        counts = sides["train"]["documents"], sides["train"]["tokens"], sides["validation"]["tokens"]
        assert f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |" in CORPUS
    for name in ("sft", "math"):
        assert re.search(
            rf"^\| {name} \| {CONTENT['categories'][name]['validation']['documents']:,} \| \d", CORPUS, re.M
        )


def test_pages_say_which_packages_the_same_data_needs():
    names = [source.get("file", "") for source in CONTENT["sources"]]
    debian = sum(name.endswith((".deb", ".text")) for name in names)
    (python,) = [source["version"] for source in CONTENT["sources"] if source["name"] == "python_library"]
    readme = " ".join(section("The proxy tier so far").split())
    assert python in readme
    for page in (CORPUS, CAMPAIGN):
        assert f"{debian} of the {len(names)}" in " ".join(page.split())
        assert python.removeprefix("Python ") in page


def test_the_command_of_the_campaign_page_names_the_source_that_differs(tmp_path):
    command = re.search(r"^    (diff .*) recorded/proxy/data_manifest.json \S+$", CAMPAIGN, re.MULTILINE)[1]

    def output(other: Path) -> str:
        return subprocess.run(
            f"{command} {FILE} {other}", shell=True, capture_output=True, text=True, check=False
        ).stdout

    changed = json.loads(FILE.read_text(encoding="utf-8"))
    source = changed["sources"][17]
    source["text_sha256"] = "0" * 64
    changed["files"]["wiki_train.bin"]["bytes"] += 2
    for name, content in (("same", CONTENT), ("changed", changed)):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    assert output(tmp_path / "same") == ""
    heads = [line for line in output(tmp_path / "changed").splitlines() if line.startswith("@@")]
    assert [head.split("@@ ")[2].strip() for head in heads] == [f'"name": "{source["name"]}",', '"files": {']
