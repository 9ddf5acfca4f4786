"""`python -m repro.data CONFIG.yaml --out FOLDER`: prepare a data folder, or verify one that is there."""

from __future__ import annotations

import argparse
import sys

from repro.data.manifest import verify_data
from repro.data.prepare import prepare
from repro.experiments.data_spec import load_data_spec


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when the folder is complete and intact, 2 with one line on stderr when not."""
    parser = argparse.ArgumentParser(prog="python -m repro.data", description=__doc__)
    parser.add_argument("config", help="data configuration, e.g. configs/data/tiny.yaml")
    parser.add_argument("--out", required=True, help="folder to prepare")
    parser.add_argument("--downloads", help="folder that keeps fetched packages (default: beside the folder)")
    parser.add_argument("--verify", action="store_true", help="only compare every file with the manifest")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verify:
            manifest = verify_data(chosen.out, checksums=True)
            print(f"{chosen.out}: {len(manifest['files'])} files intact")
        else:
            prepare(load_data_spec(chosen.config), chosen.out, downloads=chosen.downloads)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
