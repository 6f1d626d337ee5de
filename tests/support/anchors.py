"""Anchors and boxes as the libraries of detectors make them: written apart from the toolchain's code, with numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def of_torchvision_ssd(size, cells, steps, scales, ratios) -> NDArray[np.float64]:
    """Return x, y, width, height in pixels, as DefaultBoxGenerator: `steps` None spreads the cells over the input."""
    width, height = size
    rows = []
    for level, (columns, lines) in enumerate(cells):
        pairs = [[scales[level]] * 2, [np.sqrt(scales[level] * scales[level + 1])] * 2]
        for ratio in ratios[level]:
            wide, high = scales[level] * np.sqrt(ratio), scales[level] / np.sqrt(ratio)
            pairs += [[wide, high], [high, wide]]
        pairs = np.clip(np.array(pairs), 0, 1)
        per_x = width / steps[level] if steps else columns
        per_y = height / steps[level] if steps else lines
        y, x = np.meshgrid((np.arange(lines) + 0.5) / per_y, (np.arange(columns) + 0.5) / per_x, indexing="ij")
        middles = np.repeat(np.stack([x.ravel(), y.ravel()], 1), len(pairs), axis=0)
        rows.append(np.concatenate([middles, np.tile(pairs, (columns * lines, 1))], axis=1))
    return np.concatenate(rows) * [width, height, width, height]


def of_torchvision_retinanet(size, strides, sizes, ratios) -> NDArray[np.float64]:
    """Return the same of AnchorGenerator, whose boxes are corners with rounded halves of sides."""
    rows = []
    for stride, scales in zip(strides, sizes, strict=True):
        columns, lines = (-(-side // stride) for side in size)
        high = np.sqrt(np.array(ratios, np.float64))
        heights = (high[:, None] * np.array(scales)[None]).ravel()
        widths = ((1 / high)[:, None] * np.array(scales)[None]).ravel()
        base = np.round(np.stack([-widths, -heights, widths, heights], axis=1) / 2)
        y, x = np.meshgrid(np.arange(lines) * stride, np.arange(columns) * stride, indexing="ij")
        shifts = np.stack([x.ravel(), y.ravel(), x.ravel(), y.ravel()], axis=1)
        corners = (shifts[:, None] + base[None]).reshape(-1, 4)
        rows.append(np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1))
    return np.concatenate(rows)


def of_tensorflow(side, cells, scales, ratios) -> NDArray[np.float64]:
    """Return the same of create_ssd_anchors with reduce_boxes_in_lowest_layer, for a square input."""
    rows = []
    for level, count in enumerate(cells):
        pairs = [(scales[level], ratio) for ratio in ratios]
        pairs.append((np.sqrt(scales[level] * scales[level + 1]), 1.0))
        if level == 0:
            pairs = [(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        for y in range(count):
            for x in range(count):
                for scale, ratio in pairs:
                    wide, high = scale * np.sqrt(ratio), scale / np.sqrt(ratio)
                    rows.append([(x + 0.5) / count, (y + 0.5) / count, wide, high])
    return np.array(rows) * side


def of_mediapipe(side, strides) -> NDArray[np.float64]:
    """Return the same of SsdAnchorsCalculator with fixed_anchor_size and an interpolated scale, as of BlazeFace."""
    rows, level = [], 0
    while level < len(strides):
        last = level
        while last < len(strides) and strides[last] == strides[level]:
            last += 1
        count = int(np.ceil(side / strides[level]))
        for y in range(count):
            for x in range(count):
                rows += [[(x + 0.5) / count, (y + 0.5) / count, 1.0, 1.0]] * (2 * (last - level))
        level = last
    return np.array(rows) * side


def decoded(deltas, anchors, variances) -> NDArray[np.float64]:
    """Return corners of differences from anchors, by the formulas of Faster R-CNN that torchvision's BoxCoder has."""
    moved = deltas.astype(np.float64) * variances
    middles = moved[:, :2] * anchors[:, 2:] + anchors[:, :2]
    sizes = np.exp(moved[:, 2:]) * anchors[:, 2:]
    return np.concatenate([middles - sizes / 2, middles + sizes / 2], axis=1)


def _sigmoid(values):
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def of_yolo(head, maps, anchors, side) -> NDArray[np.float64]:
    """Return corners and the scores of classes of maps (anchors, rows, columns, numbers), as their authors do."""
    rows = []
    for level, values in enumerate(maps):
        _, lines, columns, _ = values.shape
        stride = side / columns
        y, x = np.meshgrid(np.arange(lines), np.arange(columns), indexing="ij")
        grid, sizes = np.stack([x, y], axis=-1)[None], np.array(anchors[level])[:, None, None] if anchors else stride
        if head == "yolox":  # demo_postprocess; objectness and classes are shares already
            middles = (values[..., :2] + grid) * stride
            extents, shares = np.exp(values[..., 2:4].astype(np.float64)) * stride, values[..., 4:].astype(np.float64)
        elif head == "v5-raw":  # models/yolo.py, Detect.forward
            near = _sigmoid(values)
            middles, extents = (near[..., :2] * 2 - 0.5 + grid) * stride, (near[..., 2:4] * 2) ** 2 * sizes
            shares = near[..., 4:]
        else:  # bx = sigmoid(tx) + cx, bw = pw e^tw
            middles = (_sigmoid(values[..., :2]) + grid) * stride
            extents, shares = np.exp(values[..., 2:4].astype(np.float64)) * sizes, _sigmoid(values[..., 4:])
        corners = np.concatenate([middles - extents / 2, middles + extents / 2], axis=-1)
        table = np.concatenate([corners, shares[..., :1] * shares[..., 1:]], axis=-1)
        rows.append(table.reshape(-1, table.shape[-1]))
    return np.concatenate(rows)
