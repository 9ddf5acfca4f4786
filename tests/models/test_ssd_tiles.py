"""The scan's fixed tiles beside what was measured of all candidates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("triton")
from repro.models import ssd_launch

MEASURED = json.loads(
    (Path(__file__).parents[2] / "benchmarks/results/ssd_tiles_h200_2026-11-29.json").read_text()
)["kernels"]
TILED = [row for row in MEASURED if row["kernel"] in ssd_launch.TILES]
#: Slower than the fastest; the comment above TILES says why it stays.
EXCEPTION = "_bmm_chunk_fwd_kernel"


def milliseconds(row: dict, **sizes: int) -> list[float]:
    """Of the one candidate with these sizes, then the fastest."""
    found = [
        value
        for words, value in row["milliseconds"].items()
        if {key: int(number) for key, number in re.findall(r"(\w+): (\d+)", words)} == sizes
    ]
    return [*found, min(row["milliseconds"].values())]


def of_tile(row: dict) -> list[float]:
    tile = ssd_launch.tile_of(row["kernel"], row["features"])
    depth = "CS" if row["kernel"] == "_bmm_chunk_bwd_kernel" else "K"
    sizes = {key: size for key, size in (("M", tile.m), ("N", tile.n), (depth, tile.k)) if size}
    return milliseconds(row, **sizes, num_warps=tile.num_warps, num_stages=tile.num_stages)


def test_every_kernel_with_tiles_was_measured_for_both_sizes_of_heads() -> None:
    assert {row["kernel"] for row in MEASURED} == ssd_launch.MODULES.keys()
    assert sorted(row["kernel"] for row in TILED) == sorted([*ssd_launch.TILES] * 2)


@pytest.mark.parametrize("row", TILED, ids=lambda row: f"{row['kernel']}-{row['features']}")
def test_a_tile_is_the_fastest_measured(row: dict) -> None:
    own, fastest = of_tile(row)
    assert (own == fastest) == (row["kernel"] != EXCEPTION)


def test_what_is_said_of_the_exception_is_what_was_measured() -> None:
    said = " ".join(Path(ssd_launch.__file__).read_text().replace("#:", " ").split())
    row = next(row for row in TILED if row["kernel"] == EXCEPTION)
    own, fastest = of_tile(row)
    assert f"the fourth, {own:.3f} against {fastest:.3f} ms a launch" in said
    assert sorted(row["milliseconds"].values()).index(own) == 3
    assert f"{100 * (own / fastest - 1):.0f} % of the shortest product" in said
    products = [min(row["milliseconds"].values()) for row in TILED if row["features"] == 32]
    assert fastest == min(products)


def test_the_kernels_without_tiles_are_near_their_fastest() -> None:
    words = " ".join(Path(ssd_launch.__file__).read_text().replace("#:", " ").split())
    slower = []
    for row in MEASURED:
        if row["kernel"] not in ssd_launch.TILES:
            by_heads = "cumsum" in row["kernel"]
            size = (
                {"H": ssd_launch._HEADS_OF_A_BLOCK}
                if by_heads
                else {"BLOCK_SIZE": ssd_launch._STATES_OF_A_BLOCK}
            )
            own, fastest = milliseconds(row, **size, num_warps=4, num_stages=3)
            slower.append(100 * (own / fastest - 1))
    assert len(slower) == 8
    assert f"at most {max(slower):.0f} % slower than each one's fastest" in words
