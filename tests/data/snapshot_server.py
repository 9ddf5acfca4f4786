"""Stands in for snapshot.debian.org, with the answers that its users describe, and for an apt that has nothing."""

import bz2
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NO_APT = """#!/bin/sh
echo "E: Unable to locate package" >&2
exit 100
"""


class Archive:
    """`files` by path; `faults`: path -> what goes wrong at the next answers ("503", "cut", "404")."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()

    def add_package(self, package: str, version: str, quoted: str, content: bytes, *others: bytes) -> str:
        """A package of one architecture; `quoted`: its version in an address. Returns the path of its first file."""
        pool_name = f"{package}_{version.rpartition(':')[2]}_all.deb"
        place = {"archive_name": "debian", "first_seen": "20250101T000000Z", "path": "/pool/main/x"}
        hashes = [hashlib.sha1(each).hexdigest() for each in (content, *others)]
        info = {name: [{"name": pool_name, "size": 1, **place}] for name in hashes}
        info["0" * 40] = [{"name": pool_name.replace("_all", "_arm64"), "size": 1, **place}]
        answer = {"_comment": "foo", "binary": package, "binary_version": version, "fileinfo": info}
        self.files[f"/mr/binary/{package}/{quoted}/binfiles?fileinfo=1"] = json.dumps(answer).encode()
        self.files |= {f"/file/{name}": each for name, each in zip(hashes, (content, *others), strict=True)}
        return f"/file/{hashes[0]}"

    def add_descriptions(self, language: str, text: str) -> str:
        path = f"/archive/debian/20261130T070000Z/dists/bookworm/main/i18n/Translation-{language}.bz2"
        self.files[path] = bz2.compress(text.encode())
        return path


@contextmanager
def serving(archive: Archive) -> Iterator[str]:
    """The address of a server that answers from `archive`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            archive.asked[self.path] += 1
            fault = (archive.faults.get(self.path) or [""]).pop(0)
            content = archive.files.get(self.path)
            if fault.isdigit() or content is None:
                self.send_error(int(fault or 404))
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
