"""Descriptions of what templates compute: layers on activations in blocked layout.

A blocked activation has the shape [batch, blocks, height, width, lanes]: channel c is lane c % lanes of block
c // lanes (NCHWc in the literature: Liu et al., "Optimizing CNN model inference on CPUs", arXiv:1809.02697). Channels
that only fill up the last block hold zeros.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from toolchain.models.converters.sequence import recurrence
from toolchain.models.converters.sequence.recurrence import Recurrence

FLOAT16 = "float16"
"""Element type of blocked tensors on boards that compute in half precision."""

BFLOAT16 = "bfloat16"
"""Element type of blocked tensors with `--bfloat16`; two neighbouring channels are one int32 there."""

PACKED = "packed"
"""What names of kernels with packed weights begin with."""


@dataclass(frozen=True)
class Activation:
    """A blocked tensor, or some whole blocks of a larger one.

    Attributes:
        batch: Images.
        channels: Channels, without those that fill up the last block.
        height: Rows.
        width: Columns.
        lanes: Channels of a block; 1 for a plain NCHW tensor.
        first: First block in the buffer; a variable in a kernel that is called for several.
        held: Blocks of the buffer; 0 if there are no others.
        dtype: Element type of its numbers.
    """

    batch: int
    channels: int
    height: int
    width: int
    lanes: int
    first: Any = 0
    held: int = 0
    dtype: str = "float32"

    @property
    def blocks(self) -> int:
        """Blocks of its own."""
        return -(-self.channels // self.lanes)

    @property
    def is_slice(self) -> bool:
        """Whether the buffer holds other blocks too."""
        return self.held not in {0, self.blocks}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer: five dimensions, or four for plain NCHW."""
        blocks = self.held or self.blocks
        lanes = (self.stored_lanes,) if self.lanes > 1 else ()
        return (self.batch, blocks, self.height, self.width, *lanes)

    @property
    def stored_lanes(self) -> int:
        """Elements of the buffer that one pixel of a block takes."""
        return self.lanes // 2 if self.dtype == BFLOAT16 else self.lanes

    @property
    def stored_dtype(self) -> str:
        """Element type of the buffer."""
        return "int32" if self.dtype == BFLOAT16 else self.dtype

    @property
    def is_bytes(self) -> bool:
        """Whether it holds bytes, which stand for numbers."""
        return self.dtype in {"uint8", "int8"}

    @property
    def elements(self) -> int:
        """Numbers, without what fills up the last block."""
        return self.batch * self.channels * self.height * self.width

    def standalone(self) -> Activation:
        """Return the same tensor in a buffer of its own."""
        return replace(self, first=0, held=0)


PostOpKind = Literal[
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
    "gelu",
    "gelu_tanh",
    "tanh",
    "hard_sigmoid",
    "hard_swish",
]


@dataclass(frozen=True)
class PostOp:
    """Something done to each element of a result before it is stored.

    Attributes:
        kind: `add` and `mul` take a tensor like the result; `scale` and `shift` one number for each channel, as
            [blocks, lanes]; the rest are activation functions as ONNX defines them.
        values: `clip`: least and greatest; `leaky_relu`: slope; `hard_sigmoid`: alpha and beta.
        other: Where the tensor of `add` and `mul` is.
    """

    kind: PostOpKind
    values: tuple[float, ...] = ()
    other: Activation | None = None

    @property
    def takes_argument(self) -> bool:
        """Whether the kernel has an argument for it."""
        return self.kind in {"add", "mul", "scale", "shift"}


@dataclass(frozen=True)
class _ImageLayer:
    """What layers on images have in common; their attributes are explained there."""

    data: Activation
    out: Activation

    @property
    def is_quantized(self) -> bool:
        """Whether it reads or writes bytes."""
        return self.data.is_bytes or self.out.is_bytes

    @property
    def is_half(self) -> bool:
        """Whether it reads or writes float16."""
        return FLOAT16 in {self.data.dtype, self.out.dtype}

    @property
    def keeps_sums(self) -> bool:
        """Whether its result has room for sums in float32."""
        return not self.is_half and self.out.dtype != BFLOAT16


@dataclass(frozen=True)
class Conv(_ImageLayer):
    """A two-dimensional convolution with what follows it.

    Arguments of the kernel: data, packed weights, bias if there is one ([blocks of `out`, lanes], zeros behind the last
    channel), one for each post-op that takes one, and the result last.

    Of bytes: data; packed weights (int8); `sums`, int32 [blocks of `out`, lanes], and `scales`, float32 of the same
    shape; `offsets`, int32 of the same shape, if there is one; `parameters`; one for each post-op `add`, which may be
    in bytes too; and the result, in bytes or float32. `int8.grids` makes them. A post-op `quantize` rounds to what
    bytes of the data's type can say.

    Attributes:
        data: Input; plain NCHW is allowed, and of bytes blocks of 4 channels whatever the machine has.
        out: Result, blocked.
        kernel: Height and width of the filter.
        strides: Steps down and right.
        padding: What is added at the top, left, bottom and right; it stands for the number zero.
        dilation: Distance of the filter's taps, down and right.
        groups: Groups of channels; `data.channels` of them make it a depthwise convolution.
        bias: Whether there is a bias; that of bytes is in the sums.
        epilogue: What follows, in order.
        offset: Whether weights in bytes lie higher by a number for each output channel.
        unpaired: Whether no two products of bytes may be added as int16, on processors that do so: see
            `grids.pairs_overflow`.
        vectors: Vectors of weights (one block of outputs, one input, one tap) that are not all zero, where leaving out
            the others may pay; 0 elsewhere.
        bfloat16: Whether data and weights are rounded to bfloat16; sums are in float32.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False
    epilogue: tuple[PostOp, ...] = ()
    offset: bool = False
    unpaired: bool = False
    vectors: int = 0
    bfloat16: bool = False

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
        """Operations, a multiply-add as two; without bias and epilogue."""
        return 2 * self.out.elements * (self.data.channels // self.groups) * self.kernel[0] * self.kernel[1]


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
        epilogue: What follows; those that take an argument take one of the result's shape.
        vectors: Vectors of weights (as many outputs as a vector has lanes, one input) that are not all zero, where
            leaving out the others may pay; 0 elsewhere.
        bfloat16: Whether data and weights are rounded to bfloat16; sums are in float32.
        float16: Whether data and weights are rounded to float16; the result is in float32.
        bits: Bits of each weight that stays packed, 4 or 8; 0 for weights as they are.
        block: Inputs that share a scale of packed weights.
        zeros: Whether packed weights have zero points.
        rounds: Whether data may be rounded to int8, with a scale for each of these blocks of a row.
    """

    rows: int
    inputs: int
    outputs: int
    bias: bool = False
    epilogue: tuple[PostOp, ...] = ()
    vectors: int = 0
    bfloat16: bool = False
    float16: bool = False
    bits: int = 0
    block: int = 0
    zeros: bool = False
    rounds: bool = False

    @property
    def blocks(self) -> int:
        """Scales of the packed weights of an output."""
        return -(-self.inputs // self.block)

    @property
    def weights_shape(self) -> tuple[int, int]:
        """Shape of the weights before packing."""
        return (self.outputs, self.inputs)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add as two."""
        return 2 * self.rows * self.inputs * self.outputs


@dataclass(frozen=True)
class Pool(_ImageLayer):
    """A two-dimensional pooling with what follows it; global if the window is the whole image.

    Arguments of the kernel: data, one for each post-op that takes one, and the result. The mean of bytes has
    `parameters` behind the data. The largest byte stands for the largest number, so `max` of bytes has neither an
    epilogue nor parameters, and its result is on the scale of its data.

    Attributes:
        data: Input, blocked.
        out: Result, blocked; the mean of bytes may be float32.
        reduce: What is done with a window.
        kernel: Height and width of the window.
        strides: Steps down and right.
        padding: What is added at the top, left, bottom and right: never the largest, and zero for a mean; it can be
            more than the window needs there, and (with ceiling of sizes) the last windows may reach further.
        dilation: Distance of the elements of a window; 1 for bytes.
        counts_padding: Whether an average counts the padding.
        epilogue: What follows, in order.
    """

    reduce: Literal["max", "mean"]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    counts_padding: bool = False
    epilogue: tuple[PostOp, ...] = ()

    @property
    def flops(self) -> int:
        """Operations: one for each element of each window."""
        return self.out.elements * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class Map(_ImageLayer):
    """Post-ops on a tensor, element by element: out = epilogue(data). A part may be read, and a part may be written.

    Arguments of the kernel: data, `parameters` if there are bytes, one for each post-op that takes one, and the result.

    Attributes:
        data: Input, blocked, or plain NCHW: then it is brought into blocks.
        out: Result, blocked, or plain NCHW: then it is brought out of blocks. Blocks of bytes may be of 4 channels.
        epilogue: What is done, in order; nothing for a copy.
        shuffle: Groups of channels that are dealt out in turn (the channel shuffle of ShuffleNet, arXiv:1707.01083):
            channel c of the result is channel (c % groups) * (channels / groups) + c // groups of the data; 0 to leave
            them in order, as bytes are.
    """

    epilogue: tuple[PostOp, ...] = ()
    shuffle: int = 0

    @property
    def flops(self) -> int:
        """Operations: one for each post-op and element, and one for a conversion."""
        return (len(self.epilogue) + self.is_quantized) * self.out.elements


@dataclass(frozen=True)
class View:
    """A tensor [batch, heads, rows, size] in the elements of another one; those of a row lie together.

    Attributes:
        shape: Sizes of the other tensor.
        strides: Elements from one to the next along batch, heads and rows; 0 where all have the same.
        offset: Its first element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, int, int]
    offset: int = 0


@dataclass(frozen=True)
class Attention:
    """Attention: softmax(scale * q k^T + mask) v for each head.

    Arguments of the kernel: the tensors that queries, keys, values and, if there is one, the mask lie in, and the
    result.

    Attributes:
        batch: Elements of the batch.
        heads: Heads.
        queries: Queries of a head.
        keys: Keys of a head.
        size: Features of a query and a key.
        value_size: Features of a value.
        q: Where the queries lie.
        k: Where the keys lie.
        v: Where the values lie.
        out: Where the results go.
        mask: Where what is added to the scores lies, [batch, heads, queries, keys].
        scale: Factor of the scores.
        bfloat16: Whether the factors of all products are rounded to bfloat16; sums are in float32.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    q: View
    k: View
    v: View
    out: View
    mask: View | None = None
    scale: float = 1.0
    bfloat16: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations of the products, a multiply-add as two."""
        return 2 * self.batch * self.heads * self.queries * self.keys * (self.size + self.value_size)


ImageLayer = Conv | Pool | Map

WithResult = ImageLayer | Dense | Attention
"""Layers that make one tensor."""

Layer = WithResult | Recurrence

_KINDS: dict[str, type[WithResult]] = {"conv": Conv, "dense": Dense, "pool": Pool, "map": Map, "attention": Attention}
_NAMES = {kind: name for name, kind in _KINDS.items()}

# In records, epilogues have an older name, and a layer on bytes has a name of its own, and not what it cannot have.
_EPILOGUE = "steps"
_QUANTIZED = "quantized_"
_NOT_OF_BYTES: dict[type[Layer], str] = {Conv: "bias", Pool: "dilation", Map: "shuffle"}


def to_json(layer: Layer) -> str:
    """Return a layer as canonical JSON: records name layers by its hash."""
    if isinstance(layer, Recurrence):
        return layer.to_json()
    document = {"kind": _NAMES[type(layer)], **dataclasses.asdict(layer)}
    if not isinstance(layer, Attention):
        document[_EPILOGUE] = document.pop("epilogue")
    if isinstance(layer, ImageLayer) and layer.is_quantized:
        document["kind"] = _QUANTIZED + document["kind"]
        # Records of layers on bytes do not have these fields.
        del document[_NOT_OF_BYTES[type(layer)]]
    # Records are older than these fields.
    for name in ("offset", "unpaired"):
        if isinstance(layer, Conv) and not document[name]:
            del document[name]
    if isinstance(layer, (Conv, Dense, Attention)):
        for name in ("vectors", "bfloat16", "float16", "bits", "block", "zeros", "rounds"):
            if not document.get(name, True):
                del document[name]
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> Layer:
    """Return the layer that `to_json` described."""
    document = json.loads(text)
    return recurrence.from_json(text) if document["kind"] == recurrence.KIND else from_document(document)


def from_document(document: dict[str, Any]) -> WithResult:
    """Return the layer of what `to_json` writes as JSON."""
    document = dict(document)
    if _EPILOGUE in document:
        document["epilogue"] = document.pop(_EPILOGUE)
    kind = _KINDS[document.pop("kind").removeprefix(_QUANTIZED)]
    return kind(**{name: _value(name, value) for name, value in document.items()})


def _value(name: str, value: Any) -> Any:
    if isinstance(value, dict) and "strides" in value:
        return View(tuple(value["shape"]), tuple(value["strides"]), value["offset"])
    if isinstance(value, dict):
        return Activation(**value)
    if name == "epilogue":
        return tuple(
            PostOp(op["kind"], tuple(op["values"]), Activation(**op["other"]) if op["other"] else None) for op in value
        )
    return tuple(value) if isinstance(value, list) else value


def at_block(layer: Layer, first: Any) -> Layer:
    """Return a layer whose result begins at another block of its buffer; one on images, others stay as they are."""
    return replace(layer, out=replace(layer.out, first=first)) if isinstance(layer, ImageLayer) else layer


def task_of(layer: Layer) -> Layer:
    """Return the layer as it is tuned, without what does not change which kernel is the fastest.

    That is where its tensors lie in larger buffers and, after a convolution or a fully connected layer, which
    activation function follows.
    """
    if isinstance(layer, (Attention, Recurrence)):
        return layer
    if isinstance(layer, Dense):
        return replace(layer, epilogue=_with_arguments(layer.epilogue))
    epilogue = tuple(replace(op, other=op.other.standalone() if op.other else None) for op in layer.epilogue)
    task = replace(layer, data=layer.data.standalone(), out=layer.out.standalone(), epilogue=epilogue)
    if isinstance(task, Conv) and not task.is_quantized:
        return replace(task, epilogue=_with_arguments(epilogue))
    return task


def _with_arguments(epilogue: tuple[PostOp, ...]) -> tuple[PostOp, ...]:
    return tuple(op for op in epilogue if op.takes_argument)


# --- precisions ------------------------------------------------------------------------------------------------------


def precision_of(layer: Layer) -> str:
    """Return what a layer computes in: `int8`, `bfloat16` or `float16`; empty for float32.

    It is `packed4` or `packed8` for float32 with packed weights, and `packed4_int8` or `packed8_int8` if the data is
    rounded to int8.
    """
    if isinstance(layer, (Conv, Dense, Attention)) and layer.bfloat16:
        return "bfloat16"
    if isinstance(layer, Dense) and layer.bits:
        return f"{PACKED}{layer.bits}{'_int8' if layer.rounds else ''}"
    if isinstance(layer, Dense):
        return FLOAT16 if layer.float16 else ""
    if isinstance(layer, (Attention, Recurrence)):
        return ""
    return "int8" if layer.is_quantized else FLOAT16 if isinstance(layer, Conv) and layer.is_half else ""


_Layer = TypeVar("_Layer", bound=Layer)


def has_pairs(layer: Layer) -> bool:
    """Whether a layer reads or writes tensors in bfloat16, which are pairs of numbers."""
    if not isinstance(layer, ImageLayer):
        return False
    others = (op.other for op in layer.epilogue if op.other)
    return BFLOAT16 in {activation.dtype for activation in (layer.data, layer.out, *others)}


def on_floats(layer: Conv) -> Conv:
    """Return a layer that rounds its data itself, in the place of one whose data is in bfloat16."""
    return replace(layer, data=replace(layer.data, dtype="float32")) if layer.data.dtype == BFLOAT16 else layer


def in_float16(layer: _Layer) -> _Layer:
    """Return a layer whose tensors in blocks are in float16; plain ones stay in float32."""

    def rounded(activation: Activation) -> Activation:
        is_blocked = activation.lanes > 1 and activation.dtype == "float32"
        return replace(activation, dtype=FLOAT16) if is_blocked else activation

    if isinstance(layer, Dense):
        return layer if layer.bits else replace(layer, float16=True)
    if isinstance(layer, (Attention, Recurrence)):
        return layer
    epilogue = tuple(replace(op, other=rounded(op.other)) if op.other else op for op in layer.epilogue)
    return replace(layer, data=rounded(layer.data), out=rounded(layer.out), epilogue=epilogue)
