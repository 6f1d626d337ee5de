"""NonMaxSuppression: which boxes of a detection remain. How many they are depends on the data.

Its results have room for as many boxes as there can be, and come with their count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812 - TVM's own name for it

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node

_FIELDS = 3  # of a result: image, class, box
_THERE = 5  # the input that says how many boxes there are


@dataclass(frozen=True)
class Limits:
    """What remains: boxes of an image and class, their share with a better one, and their score."""

    most: int
    overlap: float
    score: float | None


@converter("NonMaxSuppression")
def non_max_suppression(node: Node) -> Any:
    """Refuse NonMaxSuppression whose result is used by other nodes."""
    raise node.refusal(
        "the number of remaining boxes depends on the data, but other nodes use the boxes",
        "end the model with this node, or export it with an output of fixed size",
    )


@converter("toolchain.NonMaxSuppression")
def counted_non_max_suppression(node: Node) -> Any:
    """Convert NonMaxSuppression: [bound, 3], and how many of these rows count.

    A sixth input says how many boxes there are; those behind them are never looked at. TVM's kernel cannot be compiled.
    """
    images, classes, boxes = node.shape(1)
    limits = _limits(node, boxes)
    bound = images * classes * limits.most
    if bound == 0:
        return [relax.op.zeros((0, _FIELDS), "int64"), relax.op.zeros((1,), "int64")]
    corners = node.compute(_corners(bool(node.attributes.get("center_point_box", 0))), node.input(0), name="corners")
    order = node.emit(relax.op.argsort(node.input(1), axis=2, descending=True, dtype="int32"))

    def compute(*arguments: Any) -> Any:
        return te.extern(
            [(images * classes, limits.most), (images * classes,)],
            list(arguments),
            lambda given, made: _kept(given, made, limits),
            dtype=["int32", "int32"],
            name="kept",
        )

    there = [] if node.input(_THERE) is None else [node.input(_THERE)]
    kept = node.compute(compute, corners, node.input(1), order, *there, name="non_max_suppression")
    found, counts = (node.emit(relax.TupleGetItem(kept, index)) for index in range(2))
    return _gathered(node, found, counts, (classes, limits.most, bound))


def _limits(node: Node, boxes: int) -> Limits:
    most, overlap, score = (node.constant(index) for index in (2, 3, 4))
    return Limits(
        0 if most is None else min(int(most.reshape(())), boxes),
        0.0 if overlap is None else float(overlap.reshape(())),
        None if score is None else float(score.reshape(())),
    )


def _corners(by_centre: bool) -> Any:  # noqa: FBT001 - an attribute of the operator
    """Return what makes boxes of (lower, lower, upper, upper)."""

    def compute(boxes: Any) -> Any:
        def element(image: Any, box: Any, side: Any) -> Any:
            one, other = boxes(image, box, side % 2), boxes(image, box, side % 2 + 2)
            if by_centre:
                return tirx.Select(side < _FIELDS - 1, one - other / 2.0, one + other / 2.0)
            return tirx.Select(side < _FIELDS - 1, tirx.min(one, other), tirx.max(one, other))

        return te.compute(boxes.shape, element, name="corners")

    return compute


def _kept(given: Any, made: Any, limits: Limits) -> Any:
    """Go through the boxes of each image and class, the best first, and keep those that no kept one covers."""
    _, classes, boxes = (int(size) for size in given[1].shape)
    pairs = int(made[1].shape[0])
    with IRBuilder() as builder:
        corners, scores, order, *there = (T.buffer_proxy(one) for one in given)
        found, counts = (T.buffer_proxy(one) for one in made)
        with T.serial(0, pairs) as pair:
            image, kind = pair // classes, pair % classes
            counts[pair] = T.int32(0)
            with T.serial(0, boxes) as place:
                box = order[image, kind, place]
                good = counts[pair] < limits.most
                if limits.score is not None:
                    good = tirx.all(good, scores[image, kind, box] > tirx.const(limits.score, "float32"))
                if there:
                    good = tirx.all(good, box.astype("int64") < there[0][0])
                with T.If(good), T.Then():
                    free = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
                    free[0] = T.int32(1)
                    with T.serial(0, counts[pair]) as other:
                        share = _overlaps(corners, image, found[pair, other], box, limits.overlap)
                        with T.If(share), T.Then():
                            free[0] = T.int32(0)
                    with T.If(free[0] == 1), T.Then():
                        found[pair, counts[pair]] = box
                        counts[pair] = counts[pair] + 1
        return builder.get()


def _overlaps(corners: Any, image: Any, one: Any, other: Any, limit: float) -> Any:
    """Whether two boxes have more in common than a share of what they cover together."""
    height, width = (
        tirx.min(corners[image, one, side + 2], corners[image, other, side + 2])
        - tirx.max(corners[image, one, side], corners[image, other, side])
        for side in (0, 1)
    )
    areas = [
        (corners[image, box, 2] - corners[image, box, 0]) * (corners[image, box, 3] - corners[image, box, 1])
        for box in (one, other)
    ]
    zero = tirx.const(0, "float32")
    common = tirx.max(height, zero) * tirx.max(width, zero)
    return tirx.all(
        common > zero,
        areas[0] > zero,
        areas[1] > zero,
        common > tirx.const(limit, "float32") * (areas[0] + areas[1] - common),
    )


def _gathered(node: Node, found: Any, counts: Any, sizes: tuple[int, int, int]) -> Any:
    """Put the boxes of all images and classes behind each other: [bound, 3], and how many there are."""
    classes, most, bound = sizes
    pairs = bound // most
    ends = node.emit(relax.op.cumsum(counts, axis=0, dtype="int32"))

    def compute(kept: Any, end: Any) -> Any:
        pair = te.reduce_axis((0, pairs), "pair")

        def passed(row: Any) -> Any:
            over = end(pair) <= row.astype("int32")
            return te.sum(tirx.Select(over, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=pair)

        owner = te.compute((bound,), passed, name="owner")

        def element(row: Any, field: Any) -> Any:
            at = tirx.min(owner(row).astype("int64"), tirx.const(pairs - 1, "int64"))
            first = tirx.if_then_else(at > 0, end(tirx.max(at - 1, 0)), tirx.const(0, "int32"))
            place = tirx.min(tirx.max(row.astype("int64") - first.astype("int64"), 0), most - 1)
            box = kept(at, place).astype("int64")
            value = tirx.Select(field == 0, at // classes, tirx.Select(field == 1, at % classes, box))
            used = row.astype("int32") < end(pairs - 1)
            return tirx.Select(used, value, tirx.const(0, "int64"))

        return te.compute((bound, _FIELDS), element, name="gathered")

    rows = node.compute(compute, found, ends, name="kept_boxes")
    total = node.emit(relax.op.astype(node.emit(relax.op.strided_slice(ends, [0], [-1], [2**31 - 1])), "int64"))
    return [rows, total]
