"""What a bundle for every size of a dimension has in its manifest: variants of some sizes, which decide all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolchain.variants import LARGEST_SIZE, Dynamic

if TYPE_CHECKING:
    from toolchain.bundle.manifest import Variant


def signature(variant: Variant) -> list[tuple[Any, ...]]:
    """Return what all variants have in common: names, element types and ranks, and the bounds of outputs."""
    specs = (*variant.inputs, *variant.outputs)
    return [(len(variant.inputs), spec.name, spec.dtype, len(spec.shape), spec.bound) for spec in specs]


def faults(dynamic: Dynamic, variants: Sequence[Variant]) -> list[str]:
    """Return what is wrong with variants of sizes: in order, from the least, and with shapes that follow from the size.

    That all have the same signature is for the caller to say.
    """
    sizes = [size for variant in variants if (size := dynamic.size(variant.name))]
    is_possible = 0 < dynamic.least < dynamic.greatest <= LARGEST_SIZE
    if not is_possible or len(sizes) < len(variants) or sizes != sorted(sizes):
        return ["dynamic: the variants are not sizes in order"]
    first, last = variants[0], variants[-1]
    if (sizes[0], sizes[-1]) != (dynamic.least, dynamic.greatest):
        return ["dynamic: the first and the last variant are not those of the least and of the greatest size"]
    found = []
    pairs = zip((*first.inputs, *first.outputs), (*last.inputs, *last.outputs), strict=False)
    if not all(dynamic.is_proportional(*ends) for ends in pairs):
        found.append("dynamic: a shape is not in proportion to the size")
    for variant, size in zip(variants, sizes, strict=True):
        ends = zip((*first.inputs, *first.outputs), (*last.inputs, *last.outputs), strict=False)
        own = (*variant.inputs, *variant.outputs)
        if signature(variant) == signature(first) == signature(last) and any(
            dynamic.resize(low, high, size).shape != spec.shape for (low, high), spec in zip(ends, own, strict=True)
        ):
            found.append(f"dynamic: the shapes of {variant.name} do not follow from the size")
        if (variant.entry, variant.params_order) != (first.entry, first.params_order):
            found.append(f"dynamic: {variant.name} is another function")
    return found
