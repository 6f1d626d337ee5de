"""A model as it is imported: with the shapes of its inputs fixed, what is constant is computed beforehand.

Exporters write chains of Shape, Gather and Concat, branches on constants, loops of a known length, functions. ONNX
Runtime folds and inlines; loops are unrolled here, and functions of the standard that nobody converts become the
operators that they are made of. The user's file stays what outputs are compared with.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from toolchain.models import signature
from toolchain.models.simplify import (
    constants,
    dynamic_lstm,
    empty,
    folding,
    functions,
    loops,
    narrow,
    opsets,
    rewrites,
)
from toolchain.models.source import SourceModel, as_declared

_ROUNDS = 8  # a loop in a function in a branch needs three


def simplified(source: SourceModel, convertible: Collection[str]) -> onnx.ModelProto:
    """Return a model as it is imported: as `plain` does, with the names of operators as converters have them.

    Raises:
        InputError: A loop is too long to be unrolled, an opset is not known, or a constant is too narrow.
    """
    proto = dynamic_lstm.in_floats(plain(source, convertible))
    proto = opsets.with_qualified_operators(empty.folded_away(narrow.widened(proto)))
    for rewrite in (rewrites.axes_as_lists, rewrites.write_out_zero_products, rewrites.remove_identities):
        proto = rewrite(proto)
    return proto


def plain(source: SourceModel, convertible: Collection[str]) -> onnx.ModelProto:
    """Return a model whose operators are as few and as plain as they can be made, with the same results.

    Args:
        source: The model; it stays as it is.
        convertible: Names of operators that are imported as they are, those of other domains as `DOMAIN.NAME`.

    Returns:
        The model; where nothing is to be done, the source's own.

    Raises:
        InputError: A loop is too long to be unrolled, or an opset is not known.
    """
    opsets.check(source.proto)
    if not _is_worth_it(source.proto, convertible):
        return source.proto
    # Branches that are not taken go first: the shapes that were set may suit the one that is taken alone.
    proto = constants.as_initializers(functions.inlined(as_declared(source)))
    proto = opsets.raised(folding.folded(proto))
    signature.set_shapes(proto, {spec.name: spec.shape for spec in source.inputs})
    proto = folding.folded(proto)
    for _ in range(_ROUNDS):
        changed = loops.unrolled(proto)
        proto, expanded = functions.expanded(proto, convertible)
        proto = constants.as_initializers(proto)
        if not changed and not expanded:
            break
        proto = folding.folded(proto)
    return proto


def _is_worth_it(proto: onnx.ModelProto, convertible: Collection[str]) -> bool:
    """Whether anything would change: a network of plain layers is left as it is, bit by bit."""
    plain = all(opsets.name_of(node) in convertible for node in proto.graph.node)
    return (
        not plain
        or bool(proto.functions)
        or opsets.is_old(proto)
        or constants.are_in(proto.graph)
        or folding.has_constants(proto.graph)
    )
