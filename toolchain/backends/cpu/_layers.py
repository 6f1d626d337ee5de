"""Descriptions of what templates compute: layers on activations in blocked layout.

A blocked activation has the shape [batch, blocks, height, width, lanes]: channel c is lane c % lanes of block
c // lanes (NCHWc in the literature: Liu et al., "Optimizing CNN model inference on CPUs", arXiv:1809.02697). Channels
that only fill up the last block hold zeros.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Activation:
    """A blocked tensor, or some whole blocks of a larger one.

    Attributes:
        batch: Images.
        channels: Channels, without those that fill up the last block.
        height: Rows.
        width: Columns.
        lanes: Channels of a block; 1 for a plain NCHW tensor.
        first: First block in the buffer.
        held: Blocks of the buffer; 0 if there are no others.
        dtype: Element type.
    """

    batch: int
    channels: int
    height: int
    width: int
    lanes: int
    first: int = 0
    held: int = 0
    dtype: str = "float32"

    @property
    def blocks(self) -> int:
        """Blocks of its own."""
        return -(-self.channels // self.lanes)

    @property
    def is_part(self) -> bool:
        """Whether the buffer holds other blocks too."""
        return self.held not in {0, self.blocks}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer: five dimensions, or four for plain NCHW."""
        held = self.held or self.blocks
        lanes = (self.lanes,) if self.lanes > 1 else ()
        return (self.batch, held, self.height, self.width, *lanes)

    def whole(self) -> Activation:
        """Return the same tensor in a buffer of its own."""
        return replace(self, first=0, held=0)


StepKind = Literal[
    "add",
    "mul",
    "quantize",
    "scale",
    "shift",
    "relu",
    "clip",
    "leaky_relu",
    "sigmoid",
    "silu",
    "tanh",
    "hard_sigmoid",
    "hard_swish",
]


@dataclass(frozen=True)
class Step:
    """Something done to each element of a result before it is stored.

    Attributes:
        kind: `add` and `mul` take a tensor like the result; `scale` and `shift` one number for each channel, as
            [blocks, lanes]; the rest are activation functions as ONNX defines them.
        values: `clip`: least and greatest; `leaky_relu`: slope; `hard_sigmoid`: alpha and beta.
        other: Where the tensor of `add` and `mul` is.
    """

    kind: StepKind
    values: tuple[float, ...] = ()
    other: Activation | None = None

    @property
    def takes_argument(self) -> bool:
        """Whether the kernel has an argument for it."""
        return self.kind in {"add", "mul", "scale", "shift"}


@dataclass(frozen=True)
class _Filter:
    """What convolutions of numbers and of bytes have in common; their attributes are explained there."""

    data: Activation
    out: Activation
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved alone, into one channel."""
        return self.groups == self.data.channels == self.out.channels and self.groups > 1

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights before packing: OIHW."""
        return (self.out.channels, self.data.channels // self.groups, *self.kernel)

    @property
    def flops(self) -> int:
        """Operations, a multiply-add as two; without bias and steps."""
        made = self.out.batch * self.out.channels * self.out.height * self.out.width
        return 2 * made * (self.data.channels // self.groups) * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class Conv(_Filter):
    """A two-dimensional convolution with what follows it.

    Arguments of the kernel: data, packed weights, bias if there is one ([blocks of `out`, lanes], zeros behind the last
    channel), one for each step that takes one, and the result last.

    Attributes:
        data: Input; plain NCHW is allowed.
        out: Result, blocked.
        kernel: Height and width of the filter.
        strides: Steps down and right.
        padding: Zeros at the top, left, bottom and right.
        dilation: Distance of the filter's taps, down and right.
        groups: Groups of channels; `data.channels` of them make it a depthwise convolution.
        bias: Whether there is a bias.
        steps: What follows, in order.
    """

    bias: bool = False
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Dense:
    """A fully connected layer on plain rows: out[m, n] = sum over k of data[m, k] * weights[n, k].

    Arguments of the kernel: data [rows, inputs], packed weights, bias [outputs] if there is one, and the result
    [rows, outputs].

    Attributes:
        rows: Rows of the data.
        inputs: Features in.
        outputs: Features out.
        bias: Whether there is a bias.
        steps: What follows; those that take an argument take one of the result's shape.
    """

    rows: int
    inputs: int
    outputs: int
    bias: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def weights_shape(self) -> tuple[int, int]:
        """Shape of the weights before packing."""
        return (self.outputs, self.inputs)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add as two."""
        return 2 * self.rows * self.inputs * self.outputs


@dataclass(frozen=True)
class Pool:
    """A two-dimensional pooling with what follows it; global if the window is the whole image.

    Arguments of the kernel: data, one for each step that takes one, and the result.

    Attributes:
        data: Input, blocked.
        out: Result, blocked.
        reduce: What is done with a window.
        kernel: Height and width of the window.
        strides: Steps down and right.
        padding: What is added at the top, left, bottom and right; it can be more than the window needs there, and
            (with ceiling of sizes) the last windows may reach further.
        dilation: Distance of the elements of a window.
        counts_padding: Whether an average counts the padding.
        steps: What follows, in order.
    """

    data: Activation
    out: Activation
    reduce: Literal["max", "mean"]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    counts_padding: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def flops(self) -> int:
        """Operations: one for each element of each window."""
        made = self.out.batch * self.out.channels * self.out.height * self.out.width
        return made * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class Map:
    """Steps on a tensor, element by element: out = steps(data). A part may be read, and a part may be written.

    Arguments of the kernel: data, one for each step that takes one, and the result.

    Attributes:
        data: Input, blocked, or plain NCHW: then it is brought into blocks.
        out: Result, blocked, or plain NCHW: then it is brought out of blocks.
        steps: What is done, in order; nothing for a copy.
        shuffle: Groups of channels that are dealt out in turn (the channel shuffle of ShuffleNet, arXiv:1707.01083):
            channel c of the result is channel (c % groups) * (channels / groups) + c // groups of the data; 0 to leave
            them in order.
    """

    data: Activation
    out: Activation
    steps: tuple[Step, ...] = ()
    shuffle: int = 0

    @property
    def flops(self) -> int:
        """Operations: one for each step and element."""
        return len(self.steps) * self.out.batch * self.out.channels * self.out.height * self.out.width


@dataclass(frozen=True)
class QuantizedConv(_Filter):
    """A two-dimensional convolution of bytes with what follows it.

    A step `quantize` rounds to what bytes of the data's type can say; one `add` may take bytes.

    Arguments of the kernel: data; packed weights (int8); `sums`, int32 [blocks of `out`, lanes], and `scales`, float32
    of the same shape; `parameters`; one for each step `add`; and the result last. `int8_grids` makes them.

    Attributes:
        data: Input in bytes, blocked; blocks of 4 channels are allowed whatever the machine has.
        out: Result, blocked, in bytes or float32.
        kernel: Height and width of the filter.
        strides: Steps down and right.
        padding: What is added at the top, left, bottom and right; it stands for the number zero.
        dilation: Distance of the filter's taps, down and right.
        groups: Groups of channels; `data.channels` of them make it a depthwise convolution.
        steps: What follows, in order.
    """

    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class QuantizedPool:
    """A two-dimensional pooling of bytes.

    The largest byte stands for the largest number, so `max` has neither steps nor parameters, and its result is on the
    scale of its data. Arguments of the kernel: data; for `mean`, `parameters` and one for each step that takes one; and
    the result.

    Attributes:
        data: Input in bytes, blocked.
        out: Result, blocked, in bytes, or float32 for `mean`.
        reduce: What is done with a window.
        kernel: Height and width of the window.
        strides: Steps down and right.
        padding: What is added at the top, left, bottom and right; it is never the largest, and zero for a mean.
        counts_padding: Whether a mean counts the padding.
        steps: What follows a `mean`, in order.
    """

    data: Activation
    out: Activation
    reduce: Literal["max", "mean"]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    counts_padding: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def flops(self) -> int:
        """Operations: one for each element of each window."""
        made = self.out.batch * self.out.channels * self.out.height * self.out.width
        return made * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class QuantizedMap:
    """Steps on a tensor, element by element, that reads or writes bytes.

    Arguments of the kernel: data, `parameters`, one for each step that takes one, and the result.

    Attributes:
        data: Input in bytes or float32, blocked or plain NCHW.
        out: Result in bytes or float32, blocked or plain NCHW; its blocks may be of 4 channels.
        steps: What is done, in order.
    """

    data: Activation
    out: Activation
    steps: tuple[Step, ...] = ()

    @property
    def flops(self) -> int:
        """Operations: one for each step and element, and one for the conversion."""
        return (len(self.steps) + 1) * self.out.batch * self.out.channels * self.out.height * self.out.width


QuantizedLayer = QuantizedConv | QuantizedPool | QuantizedMap

Layer = Conv | Dense | Pool | Map | QuantizedLayer

_KINDS: dict[str, type[Layer]] = {
    "conv": Conv,
    "dense": Dense,
    "pool": Pool,
    "map": Map,
    "quantized_conv": QuantizedConv,
    "quantized_pool": QuantizedPool,
    "quantized_map": QuantizedMap,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(layer: Layer) -> str:
    """Return a layer as canonical JSON."""
    document = {"kind": _NAMES[type(layer)], **dataclasses.asdict(layer)}
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> Layer:
    """Return the layer that `to_json` described."""
    document = json.loads(text)
    kind = _KINDS[document.pop("kind")]
    return kind(**{name: _value(name, value) for name, value in document.items()})


def _value(name: str, value: Any) -> Any:
    if name in {"data", "out"}:
        return Activation(**value)
    if name == "steps":
        return tuple(_step(one) for one in value)
    return tuple(value) if isinstance(value, list) else value


def _step(document: dict[str, Any]) -> Step:
    other = document["other"]
    return Step(document["kind"], tuple(document["values"]), Activation(**other) if other else None)


def task_of(layer: Layer) -> Layer:
    """Return the layer as it is tuned, without what does not change which kernel is the fastest.

    That is where its tensors lie in larger buffers and, after a convolution or a fully connected layer, which
    activation function follows.
    """
    if isinstance(layer, Dense):
        return replace(layer, steps=_with_arguments(layer.steps))
    steps = tuple(replace(step, other=step.other.whole() if step.other else None) for step in layer.steps)
    whole = replace(layer, data=layer.data.whole(), out=layer.out.whole(), steps=steps)
    return replace(whole, steps=_with_arguments(steps)) if isinstance(whole, Conv) else whole


def _with_arguments(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(step for step in steps if step.takes_argument)
