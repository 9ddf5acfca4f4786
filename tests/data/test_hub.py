"""Listing and downloading through the hub's own client, from a server on this machine that speaks as the hub does."""

import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from published import BASE, SFT, WEB, write_corpora

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_a_test"
LARGE, SMALL = "High-Quality/large.parquet", "High-Quality/part_000000.parquet"


class Hub:
    """What the server holds and saw. The first answer for a file of `cut` ends halfway, of `stall` never ends."""

    def __init__(self, corpora: Path) -> None:
        self.corpora, self.gated, self.cut, self.stall, self.requests = corpora, {SFT}, set(), set(), []
        self.stalled, self.end = threading.Event(), threading.Event()

    def answer(self, request: "Handler") -> None:
        path = request.path.split("?")[0]
        self.requests.append((request.command, path, request.headers.get("Range")))
        if found := re.fullmatch(
            r"/api/(?:datasets|models)/([^/]+/[^/]+)(/auth-check|/tree/.*|/revision/.*|)", path
        ):
            self._api(request, *found.groups())
        elif found := re.fullmatch(rf"/(?:datasets/)?([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path):
            self._file(request, *found.groups())
        else:
            request.reply(404, {"X-Error-Code": "RepoNotFound"})

    def _refused(self, request: "Handler", repo: str) -> bool:
        if not (self.corpora / repo).is_dir():
            request.reply(404, {"X-Error-Code": "RepoNotFound"})
            return True
        if repo in self.gated and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            request.reply(
                401 if "Authorization" not in request.headers else 403, {"X-Error-Code": "GatedRepo"}
            )
            return True
        return False

    def _api(self, request: "Handler", repo: str, what: str) -> None:
        if what == "/auth-check" or not (self.corpora / repo).is_dir():
            if not self._refused(request, repo):
                request.reply(200)
        elif what.startswith("/tree/"):
            files = [path for path in sorted((self.corpora / repo).rglob("*")) if path.is_file()]
            request.reply_json([self._entry(repo, path) for path in files])
        else:
            request.reply_json({"id": repo, "sha": COMMIT, "modelId": repo})

    def _entry(self, repo: str, path: Path) -> dict:
        name, content = path.relative_to(self.corpora / repo).as_posix(), path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        lfs = {"oid": digest, "size": len(content), "pointerSize": 130}
        return {"type": "file", "path": name, "size": len(content), "oid": digest[:40], "lfs": lfs}

    def _file(self, request: "Handler", repo: str, name: str) -> None:
        if self._refused(request, repo):
            return
        content = (self.corpora / repo / name).read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        start = (
            int(found[1]) if (found := re.match(r"bytes=(\d+)-", request.headers.get("Range") or "")) else 0
        )
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        if name in self.cut and request.command == "GET" and not start:
            self.cut.remove(name)
            request.reply(200, headers, body[: len(body) // 2], length=len(body))
        elif name in self.stall and request.command == "GET":
            self.stall.remove(name)
            request.reply(200, headers, body[: len(body) // 2], length=len(body))
            self.stalled.set()
            self.end.wait(60)
        else:
            request.reply(206 if start else 200, headers, body)


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def reply(
        self, status: int, headers: dict | None = None, body: bytes = b"", length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            **(headers or {}),
            "Content-Length": str(len(body) if length is None else length),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def reply_json(self, content: object) -> None:
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def do_GET(self) -> None:
        self.hub.answer(self)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    root = write_corpora(tmp_path_factory.mktemp("hub"))
    (root / WEB / LARGE).write_bytes(os.urandom(24_000_000))  # the client writes pieces of 10 MiB
    return root


@pytest.fixture
def hub(corpora):
    handler = type("Bound", (Handler,), {"hub": Hub(corpora)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.hub.address = f"http://127.0.0.1:{server.server_port}"
    yield handler.hub
    server.shutdown()
    server.server_close()


def start(code: str, folder: Path, address: str, **environment: str) -> subprocess.Popen:
    """In a process of its own: the client reads its settings when it is imported."""
    settings = {
        "HF_ENDPOINT": address,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    prelude = (
        "import sys; sys.path.insert(0, 'tests/data'); from published import spec\nfrom pathlib import Path\n"
    )
    prelude += "from repro.data import hub\ndata = Path(sys.argv[1])\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(code), str(folder / "data")],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, folder: Path, address: str, **environment: str) -> subprocess.CompletedProcess:
    process = start(code, folder, address, **environment)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


FETCH = """
source = spec().sources[0]
listing = hub.list_source(source, None)
print(listing.revision, len(listing.files), listing.files[0].name)
for file in listing.files[:2]:
    path, digest = hub.file_on_disk(source, listing, file, corpora=None, scratch=data)
    print(digest == file.sha256, path.stat().st_size == file.bytes)
"""


def asked(hub: Hub, name: str) -> list[str | None]:
    """The stretches of a file that were asked for; None is the whole."""
    return [stretch for command, path, stretch in hub.requests if command == "GET" and path.endswith(name)]


EXPECTED = [f"{COMMIT} 6 {LARGE}", "True True", "True True"]


def test_a_download_that_is_cut_off_goes_on_where_it_stopped(hub, tmp_path):
    hub.cut.add(LARGE)
    done = run(FETCH, tmp_path, hub.address)
    assert done.stdout.splitlines() == EXPECTED, done.stderr[-2000:]
    whole, rest = asked(hub, LARGE)
    assert whole is None
    assert re.fullmatch(r"bytes=[1-9]\d{6,}-", rest or ""), f"asked for {rest}: started again"


def test_a_killed_job_finds_what_it_had_downloaded(hub, tmp_path):
    hub.stall.add(SMALL)
    job = start(FETCH, tmp_path, hub.address)
    assert hub.stalled.wait(60), "the second file was never asked for"
    job.kill()
    job.communicate()
    hub.end.set()
    done = run(FETCH, tmp_path, hub.address)
    assert done.stdout.splitlines() == EXPECTED, done.stderr[-2000:]
    assert (len(asked(hub, LARGE)), len(asked(hub, SMALL))) == (1, 2)


def test_a_download_that_is_not_the_listed_file_is_refused(hub, tmp_path):
    code = """
    from dataclasses import replace
    source = spec().sources[0]
    listing = hub.list_source(source, None)
    other = replace(listing.files[1], sha256=listing.files[2].sha256)
    hub.file_on_disk(source, listing, other, corpora=None, scratch=data)
    """
    done = run(code, tmp_path, hub.address)
    assert "part_000000.parquet is truncated or altered: its SHA-256 is not the listed one" in done.stderr
    assert not list((tmp_path / "data").rglob("*.parquet")), "the next try would find the wrong file again"


def test_a_gated_data_set_says_how_to_get_access(hub, tmp_path):
    code = "hub.list_source(spec().sources[1], None)"
    without = run(code, tmp_path, hub.address)
    page = f"{hub.address}/datasets/{SFT}"
    assert f"ValueError: source sft_code: {SFT} is gated and no token is set. Open {page}" in without.stderr
    assert "set HF_TOKEN" in without.stderr
    other = run(code, tmp_path, hub.address, HF_TOKEN="hf_of_somebody")
    assert f"{SFT} is gated and the account of HF_TOKEN has not done so" in other.stderr
    assert run(code, tmp_path, hub.address, HF_TOKEN=TOKEN).returncode == 0


def test_a_missing_data_set_and_a_missing_network_are_told_apart(hub, tmp_path):
    code = """
    options = {**spec().sources[0].options, "repo": "nvidia/None"}
    hub.list_source(spec().sources[0].model_copy(update={"options": options}), None)
    """
    assert "source web_high: " in (error := run(code, tmp_path, hub.address).stderr)
    assert "/datasets/nvidia/None does not exist, or HF_TOKEN may not see it" in error
    for settings in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        error = run("hub.list_source(spec().sources[0], None)", tmp_path, hub.address, **settings).stderr
        assert "is out of reach" in error, error[-2000:]
        assert "without a network, give the files' folder (--corpora)" in error


def test_the_tokenizer_comes_with_the_commit_it_is_of(hub, tmp_path):
    code = "from repro.data.pretrained import write_tokenizer\nprint(write_tokenizer(spec().tokenizer, data, None))"
    done = run(code, tmp_path, hub.address)
    assert f"'repo': '{BASE}', 'revision': '{COMMIT}'" in done.stdout, done.stderr[-2000:]
    assert {path.name for path in (tmp_path / "data" / "tokenizer").iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "origin.json",
    }
