"""What is copied into the repository of recorded results, and the page of all figures."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml
from synthetic_results import REPO as ROOT

from repro.analysis.published import CURVE_POINTS, _thinned, publish
from repro.analysis.verdicts import UNRESOLVED, Verdict
from repro.experiments import load


def test_what_is_published_holds_recorded_numbers_alone_and_its_pictures_stand_beside(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    claims = yaml.safe_load((ROOT / "configs" / "claims.yaml").read_text(encoding="utf-8"))
    claims["own"] = {"O1": {"element": "mine", "kind": "order", "statement": "said", "order": ["a", "b"]}}
    (tmp_path / "configs" / "claims.yaml").write_text(yaml.safe_dump(claims), encoding="utf-8")
    plan = load("tiny", configs_dir=tmp_path / "configs")
    results, figures, kept = tmp_path / "results", tmp_path / "figures", tmp_path / "kept"
    tables = {
        "fig10": "run,tokens,fraction,value,run_hash,git_commit\n"
        + "".join(f"a,{n},{n / 1000},3.00000001,abc,def\n" for n in range(1001)),
        "fig11": "run,tokens,fraction,value,run_hash,git_commit\na,1,0.1,,abc,\n",
        "table3": "name,value\nlayers,62\n",
    }
    tables["mine"] = tables["removed"] = tables["fig10"]
    for element in ("fig10", "fig11", "table3", "mine"):
        (figures / element).mkdir(parents=True)
        source = "source: own\n" if element == "mine" else ""
        (figures / element / "paper.yaml").write_text(f"title: x\n{source}", encoding="utf-8")
    for element, text in tables.items():
        folder = results / "elements" / element
        folder.mkdir(parents=True)
        (folder / "data.csv").write_text(text, encoding="utf-8")
        (folder / "figure.png").write_bytes(element.encode())
    gone = figures / "fig11" / "recorded" / "tiny.csv"
    gone.parent.mkdir(parents=True)
    gone.write_text("of a configuration that is no more", encoding="utf-8")
    (kept / "tiny").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"check\.json: not there; run `snakemake all`"):
        publish(plan, results, kept, figures)
    judged = [
        Verdict(claim, element, kind, "said", "paper", "ours", UNRESOLVED, "why", "tiny").to_dict()
        for claim, element, kind in (
            ("C22", "fig10", "event"),
            ("T3", "table3", "exact"),
            ("O1", "mine", "order"),
        )
    ]
    (results / "check.json").write_text(json.dumps({"claims": judged}), encoding="utf-8")
    written = publish(plan, results, kept, figures)
    folder = figures / "fig10" / "recorded"
    pages = [kept / "tiny" / name for name in ("claims.md", "figures.md")]
    assert written == [folder / "tiny.csv", folder / "tiny.png", *pages]
    text = (kept / "tiny" / "claims.md").read_text(encoding="utf-8")
    assert "2 claims: 0 reproduced, 0 contradicted, 2 unresolved" in text
    assert "\n| C22 ([fig10](../../figures/fig10/recorded/tiny.png)) |" in text
    assert "\n| T3 (table3) |" in text
    assert not any("O1" in page.read_text(encoding="utf-8") for page in pages)
    assert not any((figures / name / "recorded").exists() for name in ("mine", "removed")), "what is no one's"
    assert (kept / "tiny" / "../../figures/fig10/recorded/tiny.png").is_file()
    header, *rows = (folder / "tiny.csv").read_text(encoding="utf-8").splitlines()
    assert header == tables["fig10"].partition("\n")[0]
    assert (rows[0], rows[-1], len(rows)) == ("a,0,0,3,abc,def", "a,1000,1,3,abc,def", CURVE_POINTS)
    assert (folder / "tiny.png").read_bytes() == b"fig10"
    assert not gone.exists()


def test_what_the_repository_holds_of_recorded_runs_stays_small():
    """20 MB are room for the whole proxy tier: a run takes some 15 kB, a figure some 300 kB."""
    files = [path for path in (ROOT / "recorded").rglob("*") if path.is_file()]
    files += [path for path in ROOT.glob("paper_figures/*/recorded/*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 20e6


def test_each_curve_of_a_published_table_keeps_its_own_points():
    """Two panels may show the same run."""
    header = "panel,run,tokens,fraction,value\n"
    rows = [f"{panel},a,{n},{n / 1000},{n}\n" for panel in ("one", "two") for n in range(1001)]
    kept = _thinned(header + "".join(rows)).splitlines()[1:]
    assert [line.partition(",")[0] for line in kept] == ["one"] * CURVE_POINTS + ["two"] * CURVE_POINTS
