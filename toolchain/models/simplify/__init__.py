"""A model as it is imported: with fixed input shapes, constants are computed beforehand.

Exporters write chains of Shape, Gather and Concat, branches on constants, loops of a known length, functions. ONNX
Runtime folds and inlines; loops are unrolled here, and functions of the standard without a converter become the
operators that define them. Outputs are still compared with those of the user's file.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from toolchain.models import signature
from toolchain.models.simplify import empty, folding, loops, opsets, rewrites
from toolchain.models.source import SourceModel, as_declared

_ROUNDS = 8  # a loop in a function in a branch needs three


def simplified(source: SourceModel, convertible: Collection[str]) -> onnx.ModelProto:
    """Return a model as it is imported: as from `plain`, with the converters' names of operators."""
    proto = rewrites.quantized_lstm_in_floats(plain(source, convertible))
    proto = opsets.with_qualified_operators(empty.fold_empty(rewrites.widen_constants(proto)))
    for rewrite in (rewrites.axes_as_lists, rewrites.write_out_zero_products, rewrites.remove_identities):
        proto = rewrite(proto)
    return proto


def plain(source: SourceModel, convertible: Collection[str]) -> onnx.ModelProto:
    """Return a model with as few and simple operators as possible, and the same results.

    `convertible` has the names of operators that are imported as they are, those of other domains as `DOMAIN.NAME`. The
    result is the source's own model if there is nothing to do.

    Raises:
        InputError: A loop is too long to be unrolled, or an opset is unknown.
    """
    opsets.check(source.proto)
    # A network of simple layers stays as it is, bit by bit.
    if (
        all(opsets.name_of(node) in convertible for node in source.proto.graph.node)
        and not source.proto.functions
        and not opsets.is_old(source.proto)
        and not folding.has_constants_of_other_forms(source.proto.graph)
        and not folding.has_constants(source.proto.graph)
    ):
        return source.proto
    # Branches that are not taken go first: the shapes that were set may suit the one that is taken alone.
    proto = folding.as_initializers(opsets.inline_functions(as_declared(source)))
    proto = opsets.raise_opset(folding.fold_constants(proto))
    signature.set_shapes(proto, {spec.name: spec.shape for spec in source.inputs})
    proto = folding.fold_constants(proto)
    for _ in range(_ROUNDS):
        changed = loops.unroll(proto)
        proto, expanded = opsets.expand_functions(proto, convertible)
        proto = folding.as_initializers(proto)
        if not changed and not expanded:
            break
        proto = folding.fold_constants(proto)
    return proto
