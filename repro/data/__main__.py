"""`python -m repro.data CONFIG.yaml --out FOLDER`: prepare a data folder, or verify one that is there.

A configuration of hub sources is prepared in steps, which the workflow runs as jobs; `--step` runs one of them:

    tokenizer           fetch the tokenizer and compare it with the models' vocabulary
    list:SOURCE         pin the source's revision and files
    shard:SOURCE:NUMBER tokenise one shard
    manifest            validation files and manifest, from finished shards
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from repro.data.assemble import assemble, prepare_shards
from repro.data.disk import full_disk_named
from repro.data.manifest import manifest_sha256, verify_data
from repro.data.prepare import prepare
from repro.data.pretrained import write_tokenizer
from repro.data.recorded_data import RecordedData
from repro.data.shards import write_listing, write_shard
from repro.experiments.data_spec import DataSpec, load_data_spec
from repro.options import OneLineParser, whole_number


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when the folder is complete and intact, 2 with one line on stderr when not, 130 when stopped."""
    parser = OneLineParser(
        prog="python -m repro.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="data configuration, e.g. configs/data/tiny.yaml")
    parser.add_argument("--out", required=True, type=Path, help="folder to prepare")
    parser.add_argument("--downloads", help="folder that keeps fetched packages (default: beside the folder)")
    parser.add_argument(
        "--recorded",
        help="folder of the records, whose data's packages are taken, or none (default: `recorded` beside configs/)",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="SOURCE",
        help="leave out a source that cannot be had",
    )
    parser.add_argument("--verify", action="store_true", help="only compare every file with the manifest")
    parser.add_argument(
        "--corpora", type=Path, help="folder of the data sets, instead of the Hugging Face hub"
    )
    parser.add_argument("--step", help="one step of a configuration of hub sources, see above")
    parser.add_argument("--threads", type=whole_number(), help="of the tokenizer (default: all cores)")
    chosen = parser.parse_args(arguments)
    if chosen.threads:
        os.environ["RAYON_NUM_THREADS"] = str(chosen.threads)
    try:
        spec = load_data_spec(chosen.config)
        recorded = recorded_folder(chosen.recorded, chosen.config)
        if chosen.verify:
            manifest = verify_data(chosen.out, checksums=True)
            print(f"{chosen.out}: {len(manifest['files'])} files intact")
            if record := RecordedData.find(recorded, spec):
                print(f"{chosen.out}: {record.against(manifest, manifest_sha256(chosen.out))}")
            return 0
        if not spec.sharded and (chosen.step or chosen.corpora):
            raise ValueError(f"{chosen.config}: --step and --corpora are for configurations of hub sources")
        if spec.sharded and chosen.without:
            raise ValueError(f"{chosen.config}: --without is not for configurations of hub sources")
        with full_disk_named(chosen.out):
            if chosen.step:
                run_step(spec, chosen.step, chosen.out, chosen.corpora)
            elif spec.sharded:
                prepare_shards(spec, chosen.out, corpora=chosen.corpora)
            else:
                prepare(
                    spec, chosen.out, downloads=chosen.downloads, recorded=recorded, without=chosen.without
                )
    except (ValueError, OSError) as error:  # OSError: no permission
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{chosen.out}: stopped, not complete; run again to prepare it", file=sys.stderr)
        return 130
    return 0


def recorded_folder(chosen: str | None, config: str) -> Path | None:
    """The folder of the records; beside configs/data/NAME.yaml unless chosen, None for none.

    Raises ValueError when the chosen one is not there.
    """
    if chosen == "none":
        return None
    if chosen and not Path(chosen).is_dir():
        raise ValueError(f"--recorded {chosen}: no such folder; `none` takes Debian's newest packages")
    return Path(chosen or os.path.normpath(Path(config).parent / ".." / ".." / "recorded"))


def run_step(spec: DataSpec, step: str, data_dir: Path, corpora: Path | None) -> None:
    """One step of a preparation in shards; raises ValueError for a step that there is not."""
    match step.split(":"):
        case ["tokenizer"]:
            write_tokenizer(spec.tokenizer, data_dir, corpora)
        case ["list", source]:
            write_listing(spec, source, data_dir, corpora)
        case ["shard", source, number] if number.isdigit():
            write_shard(spec, source, int(number), data_dir, corpora=corpora)
        case ["manifest"]:
            assemble(spec, data_dir)
        case _:
            raise ValueError(
                f"--step {step}: known are tokenizer, list:SOURCE, shard:SOURCE:NUMBER, manifest"
            )


if __name__ == "__main__":
    sys.exit(main())
