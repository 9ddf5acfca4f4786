"""What is refused wherever a tensor, a specification or a seed is taken: objects of another kind, in one line.

Values that do not fit (a tile, a size, a shape) are the business of the modules that they belong to. A training step
makes hundreds of calls, so that each check here costs a `isinstance`.
"""

from __future__ import annotations

from torch import Tensor

from repro.numerics.formats import BlockFormat, QuantSpec


def check_tensor(x: object, name: str = "x") -> None:
    """Raise TypeError for anything but a tensor of torch."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a torch tensor, not {type(x).__name__}; torch.as_tensor(...) makes one")


def check_signs(signs: object) -> None:
    """Raise TypeError for anything but a tensor of torch, ValueError for one that can't hold -1: bits are no signs.

    The values are trusted: looking at them would wait for the GPU.
    """
    check_tensor(signs, "signs")
    if not signs.dtype.is_signed:
        given = str(signs.dtype).removeprefix("torch.")
        raise ValueError(
            f"signs are +1 and -1, which {given} does not hold; of bits make 1 - 2 * bits.float()"
        )


def check_spec(spec: object) -> None:
    """Raise TypeError for anything but a `QuantSpec`."""
    if not isinstance(spec, QuantSpec):
        given = f"the format {spec.name} alone" if isinstance(spec, BlockFormat) else f"{spec!r:.40}"
        raise TypeError(f"spec is a QuantSpec such as QuantSpec(NVFP4, (1, 16)), not {given}")


def check_seed(seed: object) -> None:
    """Raise TypeError unless a seed is an integer of Python or a tensor, which its reader checks."""
    if not isinstance(seed, int | Tensor) or isinstance(seed, bool):
        remedy = f"; int(seed) is {int(seed)}" if hasattr(seed, "__index__") else ""
        given = f"{type(seed).__name__} {seed!r:.40}"
        raise TypeError(f"a seed is an integer, or one int64 in a tensor, not {given}{remedy}")
