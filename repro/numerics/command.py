"""`repro quantize IN.npy ... --out OUT.npz`: quantises a file, on a GPU (--device cuda) by the fused kernel.

Paper sections 2 and 4.2. OUT.npz holds the arrays of `Quantized`: `codes` (uint8, one per element; with --packed as
they are stored, two of 4 bits to a byte), `scales` (uint8, or float32 for FP32 scales), `amax` (float32 [1]), of the
tensor that was quantised, which is

    IN                                   plain
    IN S H along the last dimension      with --hadamard, rounded to BF16
    IN^T (S H)                           with --transpose: Transformer Engine's column copy

Bad input ends in one message on stderr and exit code 2, Ctrl-C in one and 130. NaN and Inf are refused here; the
library lets them through as NaN (see `quantize`). An odd last dimension is refused for 4-bit formats, whose codes are
stored two to a byte; other sizes that are no multiple of the block are padded with zeros, which is exact.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from repro.numerics.formats import BlockFormat, QuantSpec, block_format
from repro.numerics.hadamard import check_size, sign_vector, transform
from repro.numerics.packing import Packed, make_packed, unpack
from repro.numerics.quantize import Quantized, count_nonfinite


def read_tensor(path: Path, *, bf16: bool) -> Tensor:
    """IN.npy as float32 [M, N], values unchanged. Raises ValueError for anything but an array of such numbers.

    float32 and float16 as they are; uint16 holds the bits of BF16 numbers and needs `bf16`.
    Leading dimensions are flattened; a vector is one row.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or 'truncated or damaged'})") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a .npy file of numbers, or a truncated one") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path}: an archive of several arrays; give one array as .npy")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{path}: nothing to quantise in an array of shape {array.shape}")
    if bf16:
        if array.dtype.newbyteorder("=") != np.uint16:
            raise ValueError(f"{path}: --bf16 reads BF16 bits from uint16, this is {array.dtype}")
        array = (array.astype(np.uint32) << 16).view(np.float32)
    elif array.dtype == np.uint16:
        raise ValueError(f"{path}: uint16 is an integer type; if it holds BF16 bits, add --bf16")
    elif array.dtype.newbyteorder("=") not in (np.float32, np.float16):
        raise ValueError(
            f"{path}: float32 or float16 expected (or uint16 with --bf16), this is {array.dtype}"
            f"{_remedy(path, array.dtype)}"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).reshape(-1, array.shape[-1])


def _remedy(path: Path, dtype: np.dtype) -> str:
    """What to type, in Python, for an array of another dtype; "" where no numbers can be made of it.

    Nothing is rounded here unasked: a float64 array is refused even where its values are float32 numbers, as the next
    one would not be.
    """
    if dtype.kind in "iufb":
        new = path.with_name(f"{path.stem}_float32.npy")
        return f"; in Python: numpy.save({str(new)!r}, numpy.load({str(path)!r}).astype('float32'))"
    if dtype.kind == "V" and dtype.itemsize == 2:  # what numpy.load makes of ml_dtypes.bfloat16
        return "; of BF16 numbers save x.view('uint16') and add --bf16"
    return ""


def check_finite(x: Tensor, where: str) -> None:
    """Raise ValueError that counts NaN and Inf in x [M, N] and names the first."""
    if num_bad := count_nonfinite(x):
        row, column = (~x.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"{where}: {num_bad} of {x.numel()} values are NaN or infinite, "
            f"the first at [{row}, {column}]: {x[row, column].item()}"
        )


def parse_tile(text: str | None, fmt: BlockFormat) -> tuple[int, int]:
    """ "1x16" as (1, 16); None is the format's 1-D tile. Raises ValueError."""
    if text is None:
        return fmt.tiles_1d
    try:
        rows, columns = (int(part) for part in text.lower().split("x"))
    except ValueError:
        known = " or ".join(f"{r}x{c}" for r, c in fmt.tiles)
        raise ValueError(f"--tile {text!r} is not ROWSxCOLUMNS; {fmt.name} has {known}") from None
    return rows, columns


def quantize_file(
    source: Path,
    *,
    spec: QuantSpec,
    bf16: bool,
    transpose: bool,
    hadamard: int,
    signs: str,
    seed: int | None,
    device: torch.device,
) -> tuple[Packed, Tensor]:
    """What the command does between reading and writing: (stored form, the float32 tensor it stands for)."""
    if hadamard:
        check_size(hadamard)
    if signs not in ("none", "fixed"):
        raise ValueError(f"--signs is 'fixed' or 'none', not {signs!r}")
    if (seed is None) == (spec.rounding == "sr"):
        raise ValueError(f"--rounding {spec.rounding} {'needs' if seed is None else 'takes no'} --seed")
    x = read_tensor(source, bf16=bf16)
    check_finite(x, str(source))
    if transpose:
        x = x.t().contiguous()
    if x.shape[1] % 2 and spec.format.element.bits == 4:
        raise ValueError(
            f"{source}: {x.shape[1]} values along the quantised dimension: two {spec.format.name} codes "
            "share a byte, so their number must be even"
        )
    x = x.to(device)
    vector = sign_vector(hadamard, kind=signs).to(device) if hadamard else None
    packed = make_packed(x, spec, hadamard=hadamard, signs=vector, seed=seed)
    if hadamard:
        x = transform(x, hadamard, vector, dim=1)
        check_finite(x, f"{source} after the Hadamard transform in BF16")
    return packed, x


def parse_device(text: str) -> torch.device:
    """A device that is there. Raises ValueError."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ValueError(f"--device {text!r} is no PyTorch device; cpu or cuda") from None
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type != "cpu" and (device.type != "cuda" or (device.index or 0) >= num_gpus):
        raise ValueError(f"--device {text}: not on this machine; cpu is")
    return device


def check_out(out: Path, source: Path) -> None:
    """Raise ValueError unless `out` names an archive of its own: the input is never written over."""
    if out.is_dir():
        raise ValueError(f"--out {out}: a folder; name a file in it, e.g. {out / source.stem}.npz")
    if out.exists() and source.exists() and out.samefile(source):
        raise ValueError(f"--out {out}: is the input; name another file, e.g. {source.stem}_quantized.npz")
    if out.suffix != ".npz":
        raise ValueError(f"--out {out}: the name must end in .npz, e.g. {out.with_suffix('.npz')}")


def write_arrays(path: Path, packed: Packed, *, keep_packed: bool) -> None:
    """Write OUT.npz under a temporary name, then rename it. Raises ValueError when the disk does not let us.

    `keep_packed`: codes as they are stored, else one a byte.
    """
    codes = packed.codes if keep_packed else unpack(packed).codes
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(
                file,
                codes=codes.cpu().numpy(),
                scales=packed.scales.cpu().numpy(),
                amax=packed.amax.cpu().numpy(),
            )
        temporary.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def describe(packed: Packed, x: Tensor) -> str:
    """The report: relative error ||x - q|| / ||x||, per cent of zeros and of values at the largest code, bytes."""
    quantized = unpack(packed)
    error = (quantized.dequantize().double() - x.double()).norm()
    norm = x.double().norm()
    element = quantized.spec.format.element
    magnitude = quantized.codes & ~element.sign_bit & 0xFF
    num_values = quantized.codes.numel()
    num_zeros, num_largest = int((magnitude == 0).sum()), int((magnitude == element.code_of_max).sum())
    rows, columns = quantized.codes.shape
    return "\n".join(
        [
            f"{rows} x {columns} values in {quantized.spec.format.name}, "
            f"tile {quantized.spec.tile[0]}x{quantized.spec.tile[1]}, "
            f"{8 * packed.nbytes / num_values:.3f} bits a value",
            f"relative error  {float(error / norm) if norm else 0.0:.6f}",
            f"zeros           {100 * num_zeros / num_values:.3f} %",
            f"largest code    {100 * num_largest / num_values:.3f} %  ({_words_of_maxima(quantized)})",
        ]
    )


def _words_of_maxima(quantized: Quantized) -> str:
    """How many values stand at the largest code by construction: the rest of them may be cut off."""
    if quantized.spec.format.scale_rule == "power_of_two_up":
        return "of blocks' maxima only some, nothing is cut off: scales are rounded up"
    tile_rows, _ = quantized.spec.tile
    num_blocks = quantized.scales.numel() // tile_rows
    share = 100 * num_blocks / quantized.codes.numel()
    return f"where each block's maximum goes: {share:.3f} % of the values"


def quantize_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN.npy",
            help="float32, float16, or uint16 with --bf16; any number of dimensions, blocks along the last",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="OUT.npz", help="codes, scales and amax are written here")],
    format: Annotated[str, typer.Option(help="nvfp4, mxfp4, fp8_block or mxfp8")] = "nvfp4",
    tile: Annotated[str | None, typer.Option(help="rows x columns of a block, e.g. 1x16 or 16x16")] = None,
    hadamard: Annotated[int, typer.Option(help="transform groups of this size first; 0: none")] = 0,
    signs: Annotated[str, typer.Option(help="signs of the transform: fixed or none")] = "fixed",
    transpose: Annotated[bool, typer.Option("--transpose", help="quantise the transposed tensor")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="IN.npy is uint16 and holds BF16 bits")] = False,
    rounding: Annotated[str, typer.Option(help="rne (nearest even) or sr (stochastic)")] = "rne",
    seed: Annotated[int | None, typer.Option(help="seed of the random bits of --rounding sr")] = None,
    scale_order: Annotated[
        str, typer.Option(help="order of the scale's FP32 operations: te or paper")
    ] = "te",
    packed: Annotated[bool, typer.Option("--packed", help="write 4-bit codes two to a byte")] = False,
    device: Annotated[str, typer.Option(help="where it is computed: cpu or cuda; the same bits")] = "cpu",
) -> None:
    """Quantise a tensor as the recipes do, write codes, scales and amax, and print the error made."""
    try:
        check_out(out, source)
        fmt = block_format(format)
        spec = QuantSpec(fmt, parse_tile(tile, fmt), rounding=rounding, scale_order=scale_order)
        stored, x = quantize_file(
            source, spec=spec, bf16=bf16, transpose=transpose, hadamard=hadamard, signs=signs, seed=seed,
            device=parse_device(device),
        )  # fmt: skip
        report = describe(stored, x)
        write_arrays(out, stored, keep_packed=packed)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("repro quantize: stopped; nothing is kept of it", err=True)
        raise typer.Exit(130) from None
    typer.echo(report)
    typer.echo(f"written to {out}")
