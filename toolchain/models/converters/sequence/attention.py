"""Attention: that of the standard, and those of ONNX Runtime's domain for encoders and decoders.

All become the same chain of products and softmax on [batch, heads, sequence, size], which backends recognise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node
from toolchain.models.converters.sequence.rotary import placed, rotated

_NEVER = -np.inf
_RANK_HEADS, _RANK_ROWS = 4, 3
_LEAST = float(np.finfo(np.float32).min)  # what ONNX Runtime's own operators add where a causal mask forbids


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values as [batch, heads, sequence, size]."""

    q: Any
    k: Any
    v: Any


@dataclass(frozen=True)
class _Scores:
    """What an attention computes on its way.

    Attributes:
        raw: Products of queries and keys, scaled.
        capped: After the soft cap.
        biased: With masks.
        weights: After the softmax.
        out: The result, [batch, heads, sequence, size].
    """

    raw: Any
    capped: Any
    biased: Any
    weights: Any
    out: Any


class _Bias:
    """What is added to the scores: known numbers are summed up at once, others when the network runs."""

    def __init__(self, node: Node, dtype: str) -> None:
        self._node, self._dtype = node, dtype
        self._known: NDArray[Any] | None = None
        self._computed: list[Any] = []

    def add(self, part: Any) -> None:
        """Add a tensor that goes with [batch, heads, queries, keys]."""
        if isinstance(part, np.ndarray):
            self._known = part if self._known is None else self._known + part
        else:
            self._computed.append(relax.op.astype(part, self._dtype))

    def allow(self, where: Any, otherwise: float = _NEVER) -> None:
        """Add a number wherever a tensor of truth values is false."""
        if isinstance(where, np.ndarray):
            self.add(np.where(where, 0.0, otherwise))
        else:
            zero, forbidden = (relax.const(value, self._dtype) for value in (0.0, otherwise))
            self.add(self._node.emit(relax.op.where(where, zero, forbidden)))

    def total(self) -> Any:
        """Return the sum as an expression; None if nothing was added."""
        parts = [] if self._known is None else [relax.const(self._known.astype(self._dtype), self._dtype)]
        parts += self._computed
        total = None
        for part in parts:
            total = part if total is None else relax.op.add(total, part)
        return None if total is None else self._node.emit(total)

    @property
    def may_forbid_all(self) -> bool:
        """Whether some query may be allowed no key at all."""
        known = self._known is not None and bool(np.isneginf(self._known).all(-1).any())
        return known or bool(self._computed)


def _wide(node: Node, *others: str) -> str:
    """Return in what an attention is computed: numbers of 16 bits are too short for its sums."""
    return "float64" if "float64" in {node.dtype(0), *others} else "float32"


def _scores(  # noqa: PLR0913 - what the operators have
    node: Node, heads: _Heads, bias: _Bias, *, scale: float, softcap: float = 0.0, guarded: bool = True, dtype: str
) -> _Scores:
    """Write the chain.

    Args:
        node: The node.
        heads: Queries, keys and values; there may be fewer heads of the last two.
        bias: What is added to the scores.
        scale: Factor of the products.
        softcap: Where scores are bent to; 0 for nowhere.
        guarded: Whether a query without a key has a result of zeros.
        dtype: Element type to compute in.
    """
    q, k, v = (node.emit(relax.op.astype(one, dtype)) for one in (heads.q, heads.k, heads.v))
    k, v = (_repeated(node, one, node.shape_of(q)[1]) for one in (k, v))
    raw = node.emit(relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2])))
    if scale != 1:
        raw = node.emit(relax.op.multiply(raw, relax.const(scale, dtype)))
    capped = raw
    if softcap:
        number = relax.const(softcap, dtype)
        capped = node.emit(relax.op.multiply(relax.op.tanh(relax.op.divide(raw, number)), number))
    total = bias.total()
    biased = capped if total is None else node.emit(relax.op.add(capped, total))
    weights = node.emit(relax.op.nn.softmax(biased, axis=-1))
    if total is not None and guarded and bias.may_forbid_all:
        # Not by the greatest number: a maximum of TVM's begins at the least finite one.
        finite = relax.op.astype(relax.op.greater_equal(total, relax.const(_LEAST, dtype)), dtype)
        some = relax.op.greater(relax.op.max(finite, axis=-1, keepdims=True), relax.const(0.5, dtype))
        weights = node.emit(relax.op.where(some, weights, relax.const(0, dtype)))
    return _Scores(raw, capped, biased, weights, node.emit(relax.op.matmul(weights, v)))


def _repeated(node: Node, value: Any, heads: int) -> Any:
    """Return keys or values with each head as often as queries share it."""
    held = node.shape_of(value)[1]
    return value if held == heads else node.emit(relax.op.repeat(value, heads // held, axis=1))


def _in_heads(node: Node, value: Any, heads: int) -> Any:
    """Return [batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    if len(node.shape_of(value)) == _RANK_HEADS:
        return value
    batch, length, hidden = node.shape_of(value)
    apart = relax.op.reshape(value, (batch, length, heads, hidden // heads))
    return node.emit(relax.op.permute_dims(apart, [0, 2, 1, 3]))


def _in_rows(node: Node, value: Any) -> Any:
    """Return [batch, heads, sequence, size] as [batch, sequence, heads * size]."""
    batch, heads, length, size = node.shape_of(value)
    together = relax.op.permute_dims(value, [0, 2, 1, 3])
    return node.emit(relax.op.reshape(together, (batch, length, heads * size)))


def _behind(node: Node, past: Any, value: Any) -> Any:
    """Return keys or values with those of the past before them."""
    if past is None or 0 in node.shape_of(past):
        return value
    return node.emit(relax.op.concat([past, value], axis=2))


def _length(node: Node, past: Any) -> int:
    return 0 if past is None else node.shape_of(past)[2]


def _distances(queries: int, keys: int) -> NDArray[np.int64]:
    """Return how much further each key is than each query."""
    distances: NDArray[np.int64] = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    return distances


# --- the standard's ----------------------------------------------------------------------------------------------


@converter("Attention")
def attention(node: Node) -> list[Any]:
    """Convert the standard's attention of opset 23 and later.

    TVM's importer takes a node of this name for that of ONNX Runtime's domain, whose inputs are others.
    """
    attributes = node.attributes
    q_heads, kv_heads = (int(attributes.get(f"{name}_num_heads", 0)) for name in ("q", "kv"))
    q, k, v = (_in_heads(node, node.inputs[at], q_heads if at == 0 else kv_heads) for at in range(3))
    k, v = (_behind(node, node.input(past), value) for past, value in ((4, k), (5, v)))
    precision = {1: "float32", 11: "float64"}.get(int(attributes.get("softmax_precision", 0)), "")
    dtype, given = _wide(node, precision), node.dtype(0)
    bias = _Bias(node, dtype)
    queries, keys, size = node.shape_of(q)[2], node.shape_of(k)[2], node.shape_of(q)[3]
    _mask(node, bias, keys)
    _windows(node, bias, queries, keys)
    scale = float(attributes.get("scale", 1 / np.sqrt(size)))
    softcap = float(attributes.get("softcap", 0))
    scores = _scores(node, _Heads(q, k, v), bias, scale=scale, softcap=softcap, dtype=dtype)
    modes = (scores.raw, scores.capped, scores.biased, scores.weights)
    shown = modes[int(attributes.get("qk_matmul_output_mode", 0))]
    out = scores.out if len(node.shape(0)) == _RANK_HEADS else _in_rows(node, scores.out)
    results = [node.emit(relax.op.astype(out, given)), k, v, node.emit(relax.op.astype(shown, given))]
    return results[: node.outputs]


def _mask(node: Node, bias: _Bias, keys: int) -> None:
    """Add the mask of an attention; keys that it does not reach are forbidden."""
    mask = node.input(3)
    if mask is None:
        return
    *before, length = node.shape(3)
    is_bool = node.dtype(3) == "bool"
    if node.is_constant(3):
        known = np.asarray(node.constant(3))
        known = np.where(known, 0.0, _NEVER) if is_bool else known.astype(np.float64)
        rest = [(0, 0)] * len(before) + [(0, keys - length)]
        bias.add(np.pad(known, rest, constant_values=_NEVER))
        return
    if length < keys:
        filler = np.full((*before, keys - length), False if is_bool else _NEVER).astype(node.dtype(3))
        mask = node.emit(relax.op.concat([mask, relax.const(filler, node.dtype(3))], axis=-1))
    (bias.allow if is_bool else bias.add)(mask)


def _windows(node: Node, bias: _Bias, queries: int, keys: int) -> None:
    """Forbid keys that are too far from a query, and those behind the last that is valid."""
    attributes, valid = node.attributes, node.input(6)
    offset: Any = np.array(_length(node, node.input(4)))
    if valid is not None:
        known = node.constant(6) if node.is_constant(6) else None
        shape = (node.shape(6)[0], 1, 1, 1)
        valid = known.reshape(shape) if known is not None else node.emit(relax.op.reshape(valid, shape))
        bias.allow(_less(node, np.arange(keys).reshape(1, 1, 1, keys), valid))
        offset = valid - queries if known is not None else node.emit(relax.op.subtract(valid, _const(node, queries, 6)))
    distances = _distances(queries, keys)
    if attributes.get("is_causal", 0):
        bias.allow(_less(node, distances - 1, offset))
    if int(attributes.get("right_window_size", -1)) >= 0:
        bias.allow(_less(node, distances - int(attributes["right_window_size"]) - 1, offset))
    if int(attributes.get("left_window_size", -1)) >= 0:
        bias.allow(_less(node, offset, distances + int(attributes["left_window_size"]) + 1))


def _const(node: Node, value: Any, like: int) -> Any:
    return relax.const(np.asarray(value, node.dtype(like)), node.dtype(like))


def _less(node: Node, first: Any, second: Any) -> Any:
    """Return where whole numbers are less than others: known, if both are."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first < second
    operands = [_const(node, one, 6) if isinstance(one, np.ndarray) else one for one in (first, second)]
    return node.emit(relax.op.less(*operands))


# --- ONNX Runtime's ----------------------------------------------------------------------------------------------


@converter("com.microsoft.Attention")
def contrib_attention(node: Node) -> list[Any]:
    """Convert ONNX Runtime's attention with the product that makes queries, keys and values in it."""
    attributes = node.attributes
    for name in ("do_rotary", "past_present_share_buffer"):
        if attributes.get(name, 0):
            raise node.refusal(f"{name} is not supported")
    heads, hidden = int(attributes["num_heads"]), node.shape(1)[1]
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes", ())] or [hidden // 3] * 3
    data = node.emit(relax.op.matmul(node.inputs[0], node.inputs[1]))
    if node.input(2) is not None:
        data = node.emit(relax.op.add(data, node.inputs[2]))
    parts = node.emit(relax.op.split(data, [sizes[0], sizes[0] + sizes[1]], axis=-1))
    q, k, v = (_in_heads(node, node.emit(relax.TupleGetItem(parts, at)), heads) for at in range(3))
    past = node.input(4)
    if past is not None:
        k, v = (_behind(node, _half(node, past, at), value) for at, value in ((0, k), (1, v)))
    out = _contrib(node, _Heads(q, k, v), 3, node.input(5))
    present = [node.emit(relax.op.stack([k, v], axis=0))] if node.outputs > 1 else []
    return [out.rows, *present]


def _half(node: Node, past: Any, at: int) -> Any:
    return node.emit(relax.op.squeeze(relax.op.take(past, relax.const(np.array([at]), "int64"), axis=0), axis=[0]))


@dataclass(frozen=True)
class _Contrib:
    """Results of an attention of ONNX Runtime's: as rows, and the products of queries and keys."""

    rows: Any
    shown: Any


def _contrib(node: Node, heads: _Heads, mask: int, extra: Any) -> _Contrib:
    """Write an attention with what these operators share.

    Args:
        node: The node.
        heads: Queries, keys and values, those of the past with them.
        mask: Number of the input that says which keys are valid.
        extra: What is added to the scores, if there is something.
    """
    dtype, attributes = _wide(node), node.attributes
    bias = _Bias(node, dtype)
    _, _, queries, size = node.shape_of(heads.q)
    keys = node.shape_of(heads.k)[2]
    if node.input(mask) is not None:
        _key_mask(node, bias, mask, queries, keys)
    if attributes.get("unidirectional", 0):
        bias.allow(_distances(queries, keys) <= keys - queries, _LEAST)
    if extra is not None:
        bias.add(extra)
    scale = float(attributes.get("scale", 0) or 1 / np.sqrt(size))
    scores = _scores(node, heads, bias, scale=scale, guarded=False, dtype=dtype)
    rows = _in_rows(node, node.emit(relax.op.astype(scores.out, node.dtype(0))))
    return _Contrib(rows, scores.raw)


def _key_mask(node: Node, bias: _Bias, mask: int, queries: int, keys: int) -> None:
    """Add a filler where a mask forbids keys: lengths, or zeros of [batch, keys] or [batch, queries, keys]."""
    filler = float(node.attributes.get("mask_filter_value", -10000.0))
    shape, value = node.shape(mask), node.inputs[mask]
    batch = node.shape(0)[0]
    if shape == (batch,):
        lengths = relax.op.reshape(value, (batch, 1, 1, 1))
        numbers = _const(node, np.arange(keys).reshape(1, 1, 1, keys), mask)
        bias.allow(node.emit(relax.op.less(numbers, lengths)), filler)
        return
    whole = {(batch, keys): (batch, 1, 1, keys), (batch, queries, keys): (batch, 1, queries, keys)}.get(shape)
    if whole is None:
        raise node.refusal(f"a mask of the shape {list(shape)} is not supported")
    valid = relax.op.greater(relax.op.reshape(value, whole), _const(node, 0, mask))
    bias.allow(node.emit(valid), filler)


@converter("com.microsoft.MultiHeadAttention")
def multi_head_attention(node: Node) -> list[Any]:
    """Convert ONNX Runtime's attention on queries, keys and values; its CPU has no packed ones either."""
    if node.input(1) is None or node.input(2) is None:
        raise node.refusal("packed queries, keys and values are not supported")
    for at in (8, 9):
        if node.input(at) is not None:
            raise node.refusal(f"input {at}, of a decoder with its own buffers, is not supported")
    heads = int(node.attributes["num_heads"])
    q, k, v = node.inputs[:3]
    if node.input(3) is not None:
        q, k, v = _with_bias(node, (q, k, v))
    parts = [_in_heads(node, value, heads) for value in (q, k, v)]
    k, v = (_behind(node, node.input(past), value) for past, value in ((6, parts[1]), (7, parts[2])))
    out = _contrib(node, _Heads(parts[0], k, v), 4, node.input(5))
    return [out.rows, k, v, node.emit(relax.op.astype(out.shown, node.dtype(0)))][: node.outputs]


def _with_bias(node: Node, parts: Sequence[Any]) -> list[Any]:
    """Add each one's part of a bias; keys and values that have heads already came with theirs."""
    rows = [len(node.shape_of(part)) == _RANK_ROWS for part in parts]
    hidden = node.shape_of(parts[0])[-1]
    cut = node.emit(relax.op.split(node.inputs[3], [hidden, 2 * hidden], axis=0))
    return [
        node.emit(relax.op.add(part, relax.TupleGetItem(cut, at))) if rows[at] else part
        for at, part in enumerate(parts)
    ]


_DECODER_ONLY = ("sliding_window_cache", "kv_cache_bit_width", "qk_output")


@converter("com.microsoft.GroupQueryAttention")
def group_query_attention(node: Node) -> list[Any]:
    """Convert ONNX Runtime's attention of decoders: a prompt, or what follows a past of a known length."""
    attributes = node.attributes
    unknown = [name for name in _DECODER_ONLY if attributes.get(name, 0)]
    unknown += [f"input {at}" for at in range(11, 16) if node.input(at) is not None]
    if unknown or attributes.get("smooth_softmax", 0) == 1:
        raise node.refusal(f"{', '.join(unknown) or 'smooth_softmax'} is not supported")
    q, k, v = _grouped(node)
    past = _length(node, node.input(3))
    if past:
        _hold_whole_past(node, past + node.shape_of(q)[2])
    if attributes.get("do_rotary", 0):
        q, k = _turned(node, q, k, past)
    k, v = (_behind(node, node.input(at), value) for at, value in ((3, k), (4, v)))
    dtype = _wide(node)
    bias = _Bias(node, dtype)
    queries, keys = node.shape_of(q)[2], node.shape_of(k)[2]
    distances = _distances(queries, keys) - (keys - queries)
    if attributes.get("causal", 1):
        bias.allow(distances <= 0)
    if int(attributes.get("local_window_size", -1)) > 0:
        bias.allow(distances > -int(attributes["local_window_size"]))
    if node.input(10) is not None:
        bias.add(node.inputs[10])
    scale = float(attributes.get("scale", 0) or 1 / np.sqrt(node.shape_of(q)[3]))
    softcap = float(attributes.get("softcap", 0))
    scores = _scores(node, _Heads(q, k, v), bias, scale=scale, softcap=softcap, dtype=dtype)
    rows = _in_rows(node, node.emit(relax.op.astype(scores.out, node.dtype(0))))
    return [rows, k, v][: node.outputs]


def _grouped(node: Node) -> tuple[Any, Any, Any]:
    """Return queries, keys and values of a decoder; they may come in one tensor."""
    q_heads, kv_heads = (int(node.attributes[name]) for name in ("num_heads", "kv_num_heads"))
    data: tuple[Any, ...] = node.inputs[:3]
    if node.input(1) is None:
        size = node.shape(0)[-1] // (q_heads + 2 * kv_heads)
        cuts = [q_heads * size, (q_heads + kv_heads) * size]
        parts = node.emit(relax.op.split(node.inputs[0], cuts, axis=-1))
        data = tuple(node.emit(relax.TupleGetItem(parts, at)) for at in range(3))
    q, k, v = (_in_heads(node, one, heads) for one, heads in zip(data, (q_heads, kv_heads, kv_heads), strict=True))
    return q, k, v


def _hold_whole_past(node: Node, total: int) -> None:
    """Refuse a past of which only a part is valid, since where new keys go would depend on data."""
    known = node.constant(5) if node.is_constant(5) else None
    if known is None or not (known == total - 1).all():
        raise node.refusal("how much of the past is valid depends on the data", "export the prompt without a past")


def _turned(node: Node, q: Any, k: Any, past: int) -> tuple[Any, Any]:
    length = node.shape_of(q)[2]
    positions = node.input(9)
    if positions is None:
        positions = relax.const(np.arange(past, past + length)[None], "int64")
    interleaved = bool(node.attributes.get("rotary_interleaved", 0))
    cos, sin = (placed(node, node.inputs[at], positions) for at in (7, 8))
    return rotated(node, q, cos, sin, interleaved=interleaved), rotated(node, k, cos, sin, interleaved=interleaved)
