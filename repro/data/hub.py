"""Files of published data sets and tokenizers: which there are, and one of them on this disk.

They come from the Hugging Face hub through its own client, which goes on with a download that was cut off. Or they
come from a local folder of the same layout, where machines that compute have no network:

    CORPORA/<owner>/<name>/<path>    e.g. CORPORA/nvidia/Nemotron-CC-v2/High-Quality/part_000000.parquet

A source is listed once: the listing pins the revision and each file's size, so that all jobs see the same files.
Access: a gated data set needs its terms accepted on its page, by the account whose token HF_TOKEN holds.

Does not: read what is in the files (`repro.data.rows`), or choose among them (configs/data/*.yaml).
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.data.manifest import sha256_of
from repro.experiments.data_spec import SourceSpec
from repro.experiments.hub_spec import HubOptions

LOCAL = "local folder"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set; `sha256` where the hub tells it."""

    name: str
    bytes: int
    sha256: str | None = None


@dataclass(frozen=True)
class Listing:
    """The files that a source takes, by name, at one revision (a commit, or "local folder")."""

    source: str
    repo: str
    revision: str
    files: tuple[RemoteFile, ...]

    def shard(self, number: int, num_shards: int) -> tuple[RemoteFile, ...]:
        """Files of one of `num_shards` jobs: dealt out in turn, so that shards are about equally large."""
        return self.files[number::num_shards]

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> Listing:
        """Raises ValueError naming the file when it is missing or damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            files = tuple(RemoteFile(**file) for file in content.pop("files"))
            return cls(**content, files=files)
        except FileNotFoundError:
            raise ValueError(f"{path}: missing; list the source first (--step list:NAME)") from None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: truncated or altered ({error}); delete it and list again") from error


def list_source(source: SourceSpec, corpora: Path | None) -> Listing:
    """The files that `source` takes now.

    Raises:
        ValueError: no access, no network, no such data set or folder, a glob that matches nothing, or fewer files
            than shards; names the source and what to do.
    """
    options = source.hub
    revision, files = _local_files(source, corpora) if corpora else _remote_files(source)
    chosen: dict[str, RemoteFile] = {}
    for glob in options.files:
        found = {file.name: file for file in files if fnmatch.fnmatchcase(file.name, glob)}
        if not found:
            folders = sorted({file.name.rpartition("/")[0] or "." for file in files})
            raise ValueError(
                f"source {source.name}: {options.repo} has no file {glob}; "
                f"it has the folders {', '.join(folders[:12])}"
            )
        chosen |= found
    if len(chosen) < options.shards:
        raise ValueError(
            f"source {source.name}: options.shards: {options.shards} jobs for {len(chosen)} files; "
            f"at most one for each file"
        )
    return Listing(source.name, options.repo, revision, tuple(chosen[name] for name in sorted(chosen)))


def file_on_disk(
    source: SourceSpec, listing: Listing, file: RemoteFile, *, corpora: Path | None, scratch: Path
) -> tuple[Path, str]:
    """(path, SHA-256) of one file: in `corpora`, or downloaded into `scratch`, which is the caller's to delete.

    What an earlier job downloaded into `scratch` is not downloaded again.

    Raises:
        ValueError: no access or network; the file is not the listed one.
    """
    if corpora is not None:
        path = corpora / listing.repo / file.name
        if not path.is_file():
            raise ValueError(f"source {source.name}: {path} is missing, but it was there when listed")
    else:
        path = _download(
            listing.repo, file.name, listing.revision, scratch, "dataset", f"source {source.name}"
        )
    size = path.stat().st_size
    digest = sha256_of(path) if size == file.bytes else ""
    if size != file.bytes or (file.sha256 and digest != file.sha256):
        if corpora is None:
            path.unlink()  # so that the next try downloads it anew
        what = (
            f"{size} bytes, listed were {file.bytes}"
            if size != file.bytes
            else "its SHA-256 is not the listed one"
        )
        raise ValueError(f"source {source.name}: {path} is truncated or altered: {what}")
    return path, digest


def fetch_tokenizer(repo: str, revision: str, folder: Path, corpora: Path | None) -> str:
    """Puts a tokenizer's files into `folder`; returns the revision they are of.

    Raises:
        ValueError: no access or network, or the model's repository (or local folder) has no tokenizer.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ("tokenizer.json", "tokenizer_config.json")
    if corpora is not None:
        for name in names:
            if not (corpora / repo / name).is_file():
                raise ValueError(f"tokenizer: {corpora / repo / name} is missing")
            shutil.copyfile(corpora / repo / name, folder / name)
        return LOCAL
    with _words(f"tokenizer {repo}", repo, "model"):
        from huggingface_hub import HfApi

        commit = str(HfApi().model_info(repo, revision=revision).sha)
    for name in names:
        _download(repo, name, commit, folder, "model", "tokenizer")
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return commit


def _local_files(source: SourceSpec, corpora: Path) -> tuple[str, list[RemoteFile]]:
    root = corpora / source.hub.repo
    if not root.is_dir():
        raise ValueError(f"source {source.name}: {root} is missing; {_how_to_get(source.hub)}")
    paths = sorted(path for path in root.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return LOCAL, [RemoteFile(path.relative_to(root).as_posix(), path.stat().st_size) for path in paths]


def _remote_files(source: SourceSpec) -> tuple[str, list[RemoteFile]]:
    options = source.hub
    with _words(f"source {source.name}", options.repo, "dataset"):
        from huggingface_hub import HfApi

        api = HfApi()
        if options.gated:
            api.auth_check(options.repo, repo_type="dataset")
        commit = str(api.dataset_info(options.repo, revision=options.revision).sha)
        tree = api.list_repo_tree(options.repo, recursive=True, revision=commit, repo_type="dataset")
        entries: list[Any] = [entry for entry in tree if hasattr(entry, "size")]
        return commit, [RemoteFile(e.path, e.size, e.lfs.sha256 if e.lfs else None) for e in entries]


def _download(repo: str, name: str, revision: str, folder: Path, kind: str, what: str) -> Path:
    with _words(what, repo, kind):
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        return Path(hf_hub_download(repo, name, repo_type=kind, revision=revision, local_dir=folder))


@contextmanager
def _words(what: str, repo: str, kind: str) -> Iterator[None]:
    """What the hub's client raises, in the user's words."""
    try:
        from huggingface_hub import errors, get_token
    except ImportError as error:
        raise ValueError(f"{what}: needs huggingface_hub (extra 'paper-data' of this project)") from error
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    page = f"{hub}/datasets/{repo}" if kind == "dataset" else f"{hub}/{repo}"
    try:
        yield
    except errors.GatedRepoError as error:
        who = "the account of HF_TOKEN has not done so" if get_token() else "no token is set"
        raise ValueError(
            f"{what}: {repo} is gated and {who}. Open {page}, log in, accept its terms, and set HF_TOKEN to a token "
            "of that account that may read gated repositories"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(f"{what}: {page} does not exist, or HF_TOKEN may not see it") from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise ValueError(f"{what}: {page} is out of reach ({error}); {_AWAY}") from error
        raise ValueError(f"{what}: {page}: no such revision or file ({error})") from error
    except ValueError:
        raise
    except Exception as error:  # a client's network errors are of no common kind
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise
        raise ValueError(
            f"{what}: {page} is out of reach ({type(error).__name__}: {error}); {_AWAY}"
        ) from error


_AWAY = "without a network, give the files' folder (--corpora)"


def _how_to_get(options: HubOptions) -> str:
    globs = " ".join(f"--include '{glob}'" for glob in options.files)
    return f"get it with: hf download {options.repo} --repo-type dataset {globs} --local-dir CORPORA/{options.repo}"
