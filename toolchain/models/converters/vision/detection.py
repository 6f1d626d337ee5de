"""NonMaxSuppression, whose number of results depends on the data: they have room for all boxes, and a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812 - TVM's own name for it

from toolchain.models.converters import Node, converter

_FIELDS = 3  # of a result: image, class, box
_COUNT_INPUT = 5  # the input that says how many boxes there are


@dataclass(frozen=True)
class Limits:
    """How many boxes may remain of an image and class, their greatest overlap with a better one, and least score."""

    max_boxes: int
    overlap: float
    score: float | None


# TVM's kernel does not compile; and other nodes would have to know how many boxes are valid.
@converter("NonMaxSuppression")
def non_max_suppression(node: Node) -> Any:
    raise node.refusal(
        "the number of remaining boxes depends on the data, but other nodes use the boxes",
        "end the model with this node, or export it with an output of fixed size",
    )


# A sixth input is the number of boxes; boxes behind it are ignored. TVM's kernel does not compile.
@converter("toolchain.NonMaxSuppression")
def counted_non_max_suppression(node: Node) -> Any:
    """Return rows [bound, 3], and how many of them are valid."""
    images, classes, boxes = node.shape(1)
    max_boxes, overlap, score = (node.constant(index) for index in (2, 3, 4))
    limits = Limits(
        0 if max_boxes is None else min(int(max_boxes.reshape(())), boxes),
        0.0 if overlap is None else float(overlap.reshape(())),
        None if score is None else float(score.reshape(())),
    )
    bound = images * classes * limits.max_boxes
    if bound == 0:
        return [relax.op.zeros((0, _FIELDS), "int64"), relax.op.zeros((1,), "int64")]
    corners = node.compute(_corners(bool(node.attributes.get("center_point_box", 0))), node.input(0), name="corners")
    order = node.emit(relax.op.argsort(node.input(1), axis=2, descending=True, dtype="int32"))

    def compute(*arguments: Any) -> Any:
        return te.extern(
            [(images * classes, limits.max_boxes), (images * classes,)],
            list(arguments),
            lambda inputs, outputs: _suppress(inputs, outputs, limits),
            dtype=["int32", "int32"],
            name="kept",
        )

    count_input = [] if node.input(_COUNT_INPUT) is None else [node.input(_COUNT_INPUT)]
    kept = node.compute(compute, corners, node.input(1), order, *count_input, name="non_max_suppression")
    kept_boxes, counts = (node.emit(relax.TupleGetItem(kept, index)) for index in range(2))
    return _gather_rows(node, kept_boxes, counts, (classes, limits.max_boxes, bound))


def _corners(by_centre: bool) -> Any:  # noqa: FBT001 - an attribute of the operator
    """Return the function that converts boxes to (lower, lower, upper, upper)."""

    def compute(boxes: Any) -> Any:
        def element(image: Any, box: Any, side: Any) -> Any:
            corner, opposite = boxes(image, box, side % 2), boxes(image, box, side % 2 + 2)
            if by_centre:
                return tirx.Select(side < _FIELDS - 1, corner - opposite / 2.0, corner + opposite / 2.0)
            return tirx.Select(side < _FIELDS - 1, tirx.min(corner, opposite), tirx.max(corner, opposite))

        return te.compute(boxes.shape, element, name="corners")

    return compute


def _suppress(inputs: Any, outputs: Any, limits: Limits) -> Any:
    """Keep the boxes of each image and class, the best first, that no kept one overlaps."""
    _, classes, boxes = (int(size) for size in inputs[1].shape)
    pairs = int(outputs[1].shape[0])
    with IRBuilder() as builder:
        corners, scores, order, *count_input = (T.buffer_proxy(buffer) for buffer in inputs)
        kept_boxes, counts = (T.buffer_proxy(buffer) for buffer in outputs)
        with T.serial(0, pairs) as pair:
            image, kind = pair // classes, pair % classes
            counts[pair] = T.int32(0)
            # Best first: a box is compared only with better ones that are kept.
            with T.serial(0, boxes) as rank:
                box = order[image, kind, rank]
                is_candidate = counts[pair] < limits.max_boxes
                if limits.score is not None:
                    limit = tirx.const(limits.score, "float32")
                    is_candidate = tirx.all(is_candidate, scores[image, kind, box] > limit)
                if count_input:
                    is_candidate = tirx.all(is_candidate, box.astype("int64") < count_input[0][0])
                with T.If(is_candidate), T.Then():
                    is_free = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
                    is_free[0] = T.int32(1)
                    with T.serial(0, counts[pair]) as other:
                        overlaps = _overlaps(corners, image, kept_boxes[pair, other], box, limits.overlap)
                        with T.If(overlaps), T.Then():
                            is_free[0] = T.int32(0)
                    with T.If(is_free[0] == 1), T.Then():
                        kept_boxes[pair, counts[pair]] = box
                        counts[pair] = counts[pair] + 1
        return builder.get()


def _overlaps(corners: Any, image: Any, first: Any, second: Any, limit: float) -> Any:
    """Whether the intersection of two boxes is more than a share of their union."""
    height, width = (
        tirx.min(corners[image, first, side + 2], corners[image, second, side + 2])
        - tirx.max(corners[image, first, side], corners[image, second, side])
        for side in (0, 1)
    )
    areas = [
        (corners[image, box, 2] - corners[image, box, 0]) * (corners[image, box, 3] - corners[image, box, 1])
        for box in (first, second)
    ]
    # Boxes without an area overlap nothing.
    zero = tirx.const(0, "float32")
    common = tirx.max(height, zero) * tirx.max(width, zero)
    return tirx.all(
        common > zero,
        areas[0] > zero,
        areas[1] > zero,
        common > tirx.const(limit, "float32") * (areas[0] + areas[1] - common),
    )


def _gather_rows(node: Node, kept_boxes: Any, counts: Any, sizes: tuple[int, int, int]) -> Any:
    """Concatenate the boxes of all images and classes: [bound, 3], and their number."""
    classes, max_boxes, bound = sizes
    pairs = bound // max_boxes
    ends = node.emit(relax.op.cumsum(counts, axis=0, dtype="int32"))

    def compute(kept: Any, end: Any) -> Any:
        pair = te.reduce_axis((0, pairs), "pair")

        def passed(row: Any) -> Any:
            over = end(pair) <= row.astype("int32")
            return te.sum(tirx.Select(over, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=pair)

        # The index of a row's image and class: the number of those whose boxes all come before the row.
        owner = te.compute((bound,), passed, name="owner")

        def element(row: Any, field: Any) -> Any:
            pair_index = tirx.min(owner(row).astype("int64"), tirx.const(pairs - 1, "int64"))
            first = tirx.if_then_else(pair_index > 0, end(tirx.max(pair_index - 1, 0)), tirx.const(0, "int32"))
            position = tirx.min(tirx.max(row.astype("int64") - first.astype("int64"), 0), max_boxes - 1)
            box = kept(pair_index, position).astype("int64")
            value = tirx.Select(field == 0, pair_index // classes, tirx.Select(field == 1, pair_index % classes, box))
            used = row.astype("int32") < end(pairs - 1)
            return tirx.Select(used, value, tirx.const(0, "int64"))

        return te.compute((bound, _FIELDS), element, name="gathered")

    rows = node.compute(compute, kept_boxes, ends, name="kept_boxes")
    total = node.emit(relax.op.astype(node.emit(relax.op.strided_slice(ends, [0], [-1], [2**31 - 1])), "int64"))
    return [rows, total]
