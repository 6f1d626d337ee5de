"""The variants of a model: the same network for several shapes of its inputs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolchain.errors import InputError
from toolchain.models.request import Model, Range, VariantShapes
from toolchain.tensors import TensorSpec
from toolchain.variants import LARGEST_SIZE, LONGEST_DIMENSION, MOST, NAME, Dynamic

SHORTEST_RANGE = 7
"""What the ends of a range differ by at least: fewer sizes are variants."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9_]+")


def of_ranges(ranges: Mapping[str, Sequence[int]]) -> tuple[VariantShapes, ...]:
    """Return a variant for each combination of the sizes of open dimensions, such as `width-64`.

    Raises:
        InputError: There are too many.
    """
    combinations = list(itertools.product(*ranges.values())) if ranges else []
    check_count(len(combinations))
    named = []
    for number, sizes in enumerate(combinations):
        words = (f"{_UNUSUAL.sub('_', name)}-{size}" for name, size in zip(ranges, sizes, strict=True))
        name = "-".join(words)
        # A name of a dimension may be a formula, and of any length.
        dims = dict(zip(ranges, sizes, strict=True))
        named.append(VariantShapes(name if NAME.fullmatch(name) else f"variant-{number}", dims=dims))
    return tuple(named)


def of_range(range_: Range) -> tuple[VariantShapes, ...]:
    """Return variants of some sizes of a range, which a device checks: both ends, and sizes that fill no vectors.

    Raises:
        InputError: The range is too short or too long.
    """
    least, greatest = range_.least, range_.greatest
    if greatest - least < SHORTEST_RANGE or greatest > LARGEST_SIZE or least < 1:
        raise InputError(
            f"{range_.name} from {least} to {greatest} is not a range from 1 or more over more than {SHORTEST_RANGE} "
            "sizes",
            hint=f"list a few sizes instead: --dim {range_.name}=1,2,3",
        )
    middle = math.isqrt(least * greatest) | 1
    sizes = sorted({least, middle, (greatest + middle) // 2 | 1, greatest - 1, greatest} - {0})
    named = dynamic_of(range_)
    return tuple(
        VariantShapes(named.variant(size), dims={range_.name: size}) for size in sizes if least <= size <= greatest
    )


def with_range(model: Model, range_: Range) -> Model:
    """Return a model that is built for every size of a dimension.

    Raises:
        InputError: As of `of_range`.
    """
    return replace(model, variants=of_range(range_), range=range_)


def dynamic_of(range_: Range) -> Dynamic:
    """Return a range as a manifest has it."""
    name = _UNUSUAL.sub("_", range_.name)[:LONGEST_DIMENSION]
    return Dynamic(name if NAME.fullmatch(name) else "size", range_.least, range_.greatest)


def check_count(count: int) -> None:
    """Refuse more variants than a bundle may have."""
    if count > MOST:
        raise InputError(
            f"these options make {count} variants, and a bundle has at most {MOST}",
            hint="use a larger step, such as --dim width=64:640:64, or fewer sizes",
        )


def check_distinct(signatures: Mapping[str, Sequence[TensorSpec]]) -> None:
    """Refuse variants between which the shapes of inputs cannot decide.

    Args:
        signatures: The inputs of each variant.

    Raises:
        InputError: Two have the same shapes, or the inputs of two have different names.
    """
    names = list(signatures)
    for position, name in enumerate(names):
        for other in names[:position]:
            one, two = signatures[other], signatures[name]
            if tuple(one) == tuple(two):
                raise InputError(
                    f"variants {other} and {name} have the same shapes",
                    details=", ".join(map(str, one)),
                    hint="leave one of them out",
                )
            if [spec.name for spec in one] != [spec.name for spec in two]:
                pairs = ((other, one), (name, two))
                listed = [f"{which}: {', '.join(spec.name for spec in specs)}" for which, specs in pairs]
                raise InputError(
                    f"variants {other} and {name} have different inputs",
                    details="\n".join(listed),
                    hint="an input of size 0 becomes a constant: build that variant on its own",
                )


def check_plain(model: Model) -> None:
    """Refuse a model with variants where one set of shapes is needed.

    Raises:
        InputError: It has variants.
    """
    if model.variants:
        raise InputError(
            f"{model.source} has {len(model.variants)} variants here, and this command takes one set of shapes",
            details=", ".join(variant.name for variant in model.variants),
            hint="`build` and `deploy` take variants; here set one shape, such as --shape NAME:1,3,224,224",
        )
