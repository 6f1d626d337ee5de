"""Static figures of the kernels for Arm: what the inner loops of typical layers consist of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import _arm_code
import tvm

from toolchain.backends import backend_of
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Layer, PostOp, to_json
from toolchain.board import Board

_LANES = 4


@dataclass(frozen=True)
class Row:
    """A kernel for one board.

    Attributes:
        board: Board type.
        layer: What it computes.
        template: What wrote it.
        settings: How the work is cut.
        loop: Of its innermost loops, the one with the most multiply-adds of vectors.
        spills: Loads and stores of vectors on the stack in all innermost loops with products, for edges too.
    """

    board: str
    layer: str
    template: str
    settings: dict[str, Any]
    loop: _arm_code.Loop
    spills: int

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"method": "static", **asdict(self), "multiply_add_share": self.loop.share}


def _conv(channels: tuple[int, int], size: int, kernel: int, stride: int = 1) -> Conv:
    """Return a convolution as networks have it: the padding keeps the size, a bias and a rectifier follow."""
    inputs, outputs = channels
    after = -(-size // stride)
    data = Activation(1, inputs, size, size, _LANES if inputs >= _LANES else 1)
    out = Activation(1, outputs, after, after, _LANES)
    padding = (kernel // 2,) * 4
    return Conv(data, out, (kernel, kernel), (stride, stride), padding, bias=True, epilogue=(PostOp("relu"),))


def _depthwise(channels: int, size: int, stride: int = 1) -> Conv:
    return replace(_conv((channels, channels), size, 3, stride), groups=channels)


LAYERS: dict[str, Layer] = {
    "ResNet-50 7x7/2 3-64 224": _conv((3, 64), 224, 7, 2),
    "ResNet-50 1x1 64-256 56": _conv((64, 256), 56, 1),
    "ResNet-50 3x3 128-128 28": _conv((128, 128), 28, 3),
    "ResNet-50 3x3/2 256-256 28": _conv((256, 256), 28, 3, 2),
    "ResNet-50 1x1 1024-256 14": _conv((1024, 256), 14, 1),
    "ResNet-50 3x3 512-512 7": _conv((512, 512), 7, 3),
    "ResNet-50 dense 2048-1000": Dense(1, 2048, 1000, bias=True),
    "MobileNet 3x3/2 3-32 224": _conv((3, 32), 224, 3, 2),
    "MobileNet depthwise 64/2 112": _depthwise(64, 112, 2),
    "MobileNet depthwise 256 28": _depthwise(256, 28),
    "MobileNet 1x1 512-512 14": _conv((512, 512), 14, 1),
}
"""Layers of networks: kernel/stride, channels in and out, size of the image."""


def rows(kind: Board) -> Iterator[Row]:
    """Compile each layer with each template that covers it, as it is where nothing was tuned, and count."""
    names, target = backend_of(kind).template_names, backend_of(kind).target
    for name, layer in LAYERS.items():
        text = to_json(layer)
        for template in names:
            templates = backend_of(kind, set(names) - {template}).templates
            choice = next(iter(templates.candidates(text)), None)
            module = templates.module(text, choice) if choice else None
            if choice is None or module is None:
                continue
            assembly = tvm.compile(module, target=target).mod.inspect_source("asm")
            loops = _arm_code.product_loops(assembly)
            settings = {key: value for key, value in choice.items() if key != "template"}
            yield Row(kind.name, name, template, settings, loops[0], sum(loop.spills for loop in loops))


def table(found: list[Row]) -> list[tuple[str, ...]]:
    """Return the figures as rows of words, with heads."""
    lines = [("board", "layer", "template", "settings", "FMA share", "by element", "per product", "spills")]
    for row in found:
        loop = row.loop
        products = loop.multiply_adds + loop.multiplies
        cut = " ".join(f"{key}={value}" for key, value in row.settings.items())
        figures = (f"{loop.share:.0%}", f"{loop.by_element}/{loop.multiply_adds}")
        each = f"{loop.instructions / products:.2f}" if products else ""
        lines.append((row.board, row.layer, row.template, cut, *figures, each, str(row.spills)))
    return lines
