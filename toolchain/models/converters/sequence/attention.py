"""Attention: that of the standard, and those of ONNX Runtime's domain for encoders and decoders.

All become the same chain of products and softmax on [batch, heads, sequence, size], which backends recognise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.models.converters import Node, converter

_FORBIDDEN = -np.inf
_RANK_HEADS, _RANK_ROWS = 4, 3
_LOWEST = float(np.finfo(np.float32).min)  # what ONNX Runtime's own operators add where a causal mask forbids
_DECODER_ONLY = ("sliding_window_cache", "kv_cache_bit_width", "qk_output")


# Rotary position embeddings (Su et al., "RoFormer", arXiv:2104.09864): pairs of features turned by their position.


def cached_rows(node: Node, cache: Any, positions: Any) -> Any:
    """Return rows of a cache [positions, half] for positions [batch, sequence], as [batch, 1, sequence, half]."""
    batch, length = node.shape_of(positions)
    rows = relax.op.take(cache, relax.op.reshape(positions, (batch * length,)), axis=0)
    return node.emit(relax.op.reshape(rows, (batch, 1, length, node.shape_of(cache)[1])))


def rotate(node: Node, data: Any, cos: Any, sin: Any, *, interleaved: bool) -> Any:
    """Rotate pairs of features of data [batch, heads, sequence, size]; those behind the last pair stay.

    Cosines and sines are [batch, 1, sequence, pairs]. The two of a pair are neighbours if `interleaved`, else halves of
    the features apart.
    """
    batch, heads, length, size = node.shape_of(data)
    pairs = node.shape_of(cos)[-1]
    head, tail = data, []
    if 2 * pairs < size:
        split = node.emit(relax.op.split(data, [2 * pairs], axis=-1))
        head, *tail = (node.emit(relax.TupleGetItem(split, index)) for index in range(2))
    split_shape = (batch, heads, length, pairs, 2) if interleaved else (batch, heads, length, 2, pairs)
    axis = 4 if interleaved else 3
    halves = node.emit(relax.op.split(relax.op.reshape(head, split_shape), 2, axis=axis))
    first, second = (node.emit(relax.op.squeeze(relax.TupleGetItem(halves, index), axis=[axis])) for index in range(2))
    real = relax.op.subtract(relax.op.multiply(cos, first), relax.op.multiply(sin, second))
    imaginary = relax.op.add(relax.op.multiply(sin, first), relax.op.multiply(cos, second))
    pairs_out = node.emit(relax.op.stack([real, imaginary], axis=axis))
    rotated = node.emit(relax.op.reshape(pairs_out, (batch, heads, length, 2 * pairs)))
    return node.emit(relax.op.concat([rotated, *tail], axis=-1)) if tail else rotated


# Without positions, the caches have a row for each element.
@converter("RotaryEmbedding")
def rotary_embedding(node: Node) -> Any:
    cos, sin = node.inputs[1:3]
    if node.input(3) is not None:
        cos, sin = (cached_rows(node, cache, node.inputs[3]) for cache in (cos, sin))
    else:
        cos, sin = (node.emit(relax.op.expand_dims(cache, 1)) for cache in (cos, sin))
    return _rotate_input(node, cos, sin)


# A single position is that of the first element.
@converter("com.microsoft.RotaryEmbedding")
def contrib_rotary_embedding(node: Node) -> Any:
    if node.attributes.get("is_packed_batching", 0) or node.attributes.get("scale", 1.0) != 1:
        raise node.refusal("is_packed_batching and scale are not supported")
    batch, length = node.shape(0)[0], node.shape(0)[-2]
    positions = node.inputs[1]
    if node.shape(1) == (1,) and (batch, length) != (1, 1):
        numbers = relax.const(np.arange(length)[None].astype(node.dtype(1)), node.dtype(1))
        positions = node.emit(relax.op.add(numbers, relax.op.reshape(positions, (1, 1))))
    positions = node.emit(relax.op.reshape(positions, (-1, length)))
    return _rotate_input(node, *(cached_rows(node, node.inputs[index], positions) for index in (2, 3)))


def _rotate_input(node: Node, cos: Any, sin: Any) -> Any:
    data, shape = node.inputs[0], node.shape(0)
    interleaved = bool(node.attributes.get("interleaved", 0))
    if len(shape) == _RANK_HEADS:
        return rotate(node, data, cos, sin, interleaved=interleaved)
    pairs = node.shape_of(cos)[-1]
    size = int(node.attributes.get("rotary_embedding_dim", 0)) or 2 * pairs
    heads = int(node.attributes.get("num_heads", 0)) or shape[-1] // size
    split = relax.op.reshape(data, (shape[0], shape[1], heads, shape[2] // heads))
    rotated = rotate(node, node.emit(relax.op.permute_dims(split, [0, 2, 1, 3])), cos, sin, interleaved=interleaved)
    return node.emit(relax.op.reshape(relax.op.permute_dims(rotated, [0, 2, 1, 3]), shape))


@dataclass(frozen=True)
class _Heads:
    """[batch, heads, sequence, size] each."""

    q: Any
    k: Any
    v: Any


@dataclass(frozen=True)
class _Scores:
    """Intermediate results: `raw` products, `capped`, `biased` by masks, `weights` after the softmax, and `out`."""

    raw: Any
    capped: Any
    biased: Any
    weights: Any
    out: Any


class _Bias:
    """The bias of the scores: constants are added up at compile time, other tensors when the network runs."""

    def __init__(self, node: Node, dtype: str) -> None:
        self.node, self.dtype = node, dtype
        self._constant: NDArray[Any] | None = None
        self._computed: list[Any] = []

    def add(self, tensor: Any) -> None:
        """Add a tensor that broadcasts to [batch, heads, queries, keys]."""
        if isinstance(tensor, np.ndarray):
            self._constant = tensor if self._constant is None else self._constant + tensor
        else:
            self._computed.append(relax.op.astype(tensor, self.dtype))

    def allow(self, allowed: Any, penalty: float = _FORBIDDEN) -> None:
        """Add a penalty wherever a tensor of truth values is false."""
        if isinstance(allowed, np.ndarray):
            self.add(np.where(allowed, 0.0, penalty))
        else:
            zero, forbidden = (relax.const(value, self.dtype) for value in (0.0, penalty))
            self.add(self.node.emit(relax.op.where(allowed, zero, forbidden)))

    def total(self) -> Any:
        """Return the sum as an expression; None if nothing was added."""
        terms = [] if self._constant is None else [relax.const(self._constant.astype(self.dtype), self.dtype)]
        terms += self._computed
        total = None
        for term in terms:
            total = term if total is None else relax.op.add(total, term)
        return None if total is None else self.node.emit(total)

    @property
    def may_forbid_all(self) -> bool:
        """Whether a query may be left without any key."""
        constant_forbids = self._constant is not None and bool(np.isneginf(self._constant).all(-1).any())
        return constant_forbids or bool(self._computed)


# 16 bits are too few for the sums of an attention.
def _accumulation_dtype(node: Node, *others: str) -> str:
    return "float64" if "float64" in {node.dtype(0), *others} else "float32"


def _scores(heads: _Heads, bias: _Bias, *, scale: float, softcap: float = 0.0, guarded: bool = True) -> _Scores:
    """Write the chain. Keys and values may have fewer heads than the queries.

    `softcap` limits the scores' absolute value, 0 does not. If `guarded`, the result of a query without a key is 0.
    """
    node, dtype = bias.node, bias.dtype
    q, k, v = (node.emit(relax.op.astype(value, dtype)) for value in (heads.q, heads.k, heads.v))
    heads_per_kv = node.shape_of(q)[1] // node.shape_of(k)[1]
    if heads_per_kv > 1:  # several queries share a head of keys and values
        k, v = (node.emit(relax.op.repeat(value, heads_per_kv, axis=1)) for value in (k, v))
    raw = node.emit(relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2])))
    if scale != 1:
        raw = node.emit(relax.op.multiply(raw, relax.const(scale, dtype)))
    capped = raw
    if softcap:
        cap = relax.const(softcap, dtype)
        capped = node.emit(relax.op.multiply(relax.op.tanh(relax.op.divide(raw, cap)), cap))
    total = bias.total()
    biased = capped if total is None else node.emit(relax.op.add(capped, total))
    weights = node.emit(relax.op.nn.softmax(biased, axis=-1))
    if total is not None and guarded and bias.may_forbid_all:
        # Counted by finite elements, not by the maximum: TVM's maximum begins at the least finite number.
        finite = relax.op.astype(relax.op.greater_equal(total, relax.const(_LOWEST, dtype)), dtype)
        allows_some = relax.op.greater(relax.op.max(finite, axis=-1, keepdims=True), relax.const(0.5, dtype))
        weights = node.emit(relax.op.where(allows_some, weights, relax.const(0, dtype)))
    return _Scores(raw, capped, biased, weights, node.emit(relax.op.matmul(weights, v)))


def _split_heads(node: Node, value: Any, heads: int) -> Any:
    """Return [batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    if len(node.shape_of(value)) == _RANK_HEADS:
        return value
    batch, length, hidden = node.shape_of(value)
    split = relax.op.reshape(value, (batch, length, heads, hidden // heads))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _merge_heads(node: Node, value: Any) -> Any:
    """Return [batch, heads, sequence, size] as [batch, sequence, heads * size]."""
    batch, heads, length, size = node.shape_of(value)
    rows = relax.op.permute_dims(value, [0, 2, 1, 3])
    return node.emit(relax.op.reshape(rows, (batch, length, heads * size)))


def _append_to_past(node: Node, past: Any, value: Any) -> Any:
    if past is None or 0 in node.shape_of(past):
        return value
    return node.emit(relax.op.concat([past, value], axis=2))


def _past_length(node: Node, past: Any) -> int:
    return 0 if past is None else node.shape_of(past)[2]


def _distances(queries: int, keys: int) -> NDArray[np.int64]:
    """Return how far each key is behind each query, [queries, keys]."""
    distances: NDArray[np.int64] = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    return distances


# --- the standard's ----------------------------------------------------------------------------------------------


# TVM's importer confuses it with the operator of ONNX Runtime's domain, whose inputs are others.
@converter("Attention")
def attention(node: Node) -> list[Any]:
    """Convert the standard's attention of opset 23 and later."""
    attributes = node.attributes
    q_heads, kv_heads = (int(attributes.get(f"{name}_num_heads", 0)) for name in ("q", "kv"))
    q, k, v = (_split_heads(node, node.inputs[index], q_heads if index == 0 else kv_heads) for index in range(3))
    k, v = (_append_to_past(node, node.input(past), value) for past, value in ((4, k), (5, v)))
    precision = {1: "float32", 11: "float64"}.get(int(attributes.get("softmax_precision", 0)), "")
    input_dtype, bias = node.dtype(0), _Bias(node, _accumulation_dtype(node, precision))
    queries, keys, size = node.shape_of(q)[2], node.shape_of(k)[2], node.shape_of(q)[3]
    _add_mask(node, bias, keys)
    _forbid_distant(node, bias, queries, keys)
    scale = float(attributes.get("scale", 1 / np.sqrt(size)))
    softcap = float(attributes.get("softcap", 0))
    scores = _scores(_Heads(q, k, v), bias, scale=scale, softcap=softcap)
    modes = (scores.raw, scores.capped, scores.biased, scores.weights)
    selected = modes[int(attributes.get("qk_matmul_output_mode", 0))]
    out = scores.out if len(node.shape(0)) == _RANK_HEADS else _merge_heads(node, scores.out)
    results = [node.emit(relax.op.astype(out, input_dtype)), k, v, node.emit(relax.op.astype(selected, input_dtype))]
    return results[: node.outputs]


# Keys beyond the end of the mask are forbidden.
def _add_mask(node: Node, bias: _Bias, keys: int) -> None:
    mask = node.input(3)
    if mask is None:
        return
    *leading, length = node.shape(3)
    is_bool = node.dtype(3) == "bool"
    if node.is_constant(3):
        mask_values = np.asarray(node.constant(3))
        mask_values = np.where(mask_values, 0.0, _FORBIDDEN) if is_bool else mask_values.astype(np.float64)
        rest = [(0, 0)] * len(leading) + [(0, keys - length)]
        bias.add(np.pad(mask_values, rest, constant_values=_FORBIDDEN))
        return
    if length < keys:
        filler = np.full((*leading, keys - length), False if is_bool else _FORBIDDEN).astype(node.dtype(3))
        mask = node.emit(relax.op.concat([mask, relax.const(filler, node.dtype(3))], axis=-1))
    (bias.allow if is_bool else bias.add)(mask)


def _forbid_distant(node: Node, bias: _Bias, queries: int, keys: int) -> None:
    """Forbid keys that are too far from a query, and those behind the last valid one."""
    attributes, valid = node.attributes, node.input(6)
    offset: Any = np.array(_past_length(node, node.input(4)))
    if valid is not None:
        lengths = node.constant(6) if node.is_constant(6) else None
        shape = (node.shape(6)[0], 1, 1, 1)
        valid = lengths.reshape(shape) if lengths is not None else node.emit(relax.op.reshape(valid, shape))
        bias.allow(_less(node, np.arange(keys).reshape(1, 1, 1, keys), valid))
        if lengths is not None:
            # The queries are the last of the valid positions.
            offset = valid - queries
        else:
            offset = node.emit(relax.op.subtract(valid, _constant_like(node, queries, 6)))
    distances = _distances(queries, keys)
    if attributes.get("is_causal", 0):
        bias.allow(_less(node, distances - 1, offset))
    if int(attributes.get("right_window_size", -1)) >= 0:
        bias.allow(_less(node, distances - int(attributes["right_window_size"]) - 1, offset))
    if int(attributes.get("left_window_size", -1)) >= 0:
        bias.allow(_less(node, offset, distances + int(attributes["left_window_size"]) + 1))


def _constant_like(node: Node, value: Any, like: int) -> Any:
    return relax.const(np.asarray(value, node.dtype(like)), node.dtype(like))


def _less(node: Node, first: Any, second: Any) -> Any:
    """Compare whole numbers: at compile time if both are constant."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first < second
    operands = [_constant_like(node, x, 6) if isinstance(x, np.ndarray) else x for x in (first, second)]
    return node.emit(relax.op.less(*operands))


# --- ONNX Runtime's ----------------------------------------------------------------------------------------------


@converter("com.microsoft.Attention")
def contrib_attention(node: Node) -> list[Any]:
    """Convert ONNX Runtime's attention that multiplies its input with the weights of queries, keys and values."""
    attributes = node.attributes
    for name in ("do_rotary", "past_present_share_buffer"):
        if attributes.get(name, 0):
            raise node.refusal(f"{name} is not supported")
    heads, hidden = int(attributes["num_heads"]), node.shape(1)[1]
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes", ())] or [hidden // 3] * 3
    data = node.emit(relax.op.matmul(node.inputs[0], node.inputs[1]))
    if node.input(2) is not None:
        data = node.emit(relax.op.add(data, node.inputs[2]))
    products = node.emit(relax.op.split(data, [sizes[0], sizes[0] + sizes[1]], axis=-1))
    q, k, v = (_split_heads(node, node.emit(relax.TupleGetItem(products, index)), heads) for index in range(3))
    past = node.input(4)
    if past is not None:
        presents = []
        for index, value in ((0, k), (1, v)):  # the past of keys and of values are in one tensor
            half = relax.op.take(past, relax.const(np.array([index]), "int64"), axis=0)
            presents.append(_append_to_past(node, node.emit(relax.op.squeeze(half, axis=[0])), value))
        k, v = presents
    out = _contrib_scores(node, _Heads(q, k, v), 3, node.input(5))
    present = [node.emit(relax.op.stack([k, v], axis=0))] if node.outputs > 1 else []
    return [out.rows, *present]


@dataclass(frozen=True)
class _ContribResult:
    rows: Any
    raw_scores: Any


def _contrib_scores(node: Node, heads: _Heads, mask: int, extra: Any) -> _ContribResult:
    """Write the attention that ONNX Runtime's operators share.

    `mask` is the index of the input that says which keys are valid; `extra` is added to the scores.
    """
    attributes, bias = node.attributes, _Bias(node, _accumulation_dtype(node))
    _, _, queries, size = node.shape_of(heads.q)
    keys = node.shape_of(heads.k)[2]
    if node.input(mask) is not None:
        _add_key_mask(node, bias, mask, queries, keys)
    if attributes.get("unidirectional", 0):
        bias.allow(_distances(queries, keys) <= keys - queries, _LOWEST)
    if extra is not None:
        bias.add(extra)
    scale = float(attributes.get("scale", 0) or 1 / np.sqrt(size))
    scores = _scores(heads, bias, scale=scale, guarded=False)
    rows = _merge_heads(node, node.emit(relax.op.astype(scores.out, node.dtype(0))))
    return _ContribResult(rows, scores.raw)


def _add_key_mask(node: Node, bias: _Bias, mask: int, queries: int, keys: int) -> None:
    """Add a filler where a mask forbids keys: lengths, or zeros of [batch, keys] or [batch, queries, keys]."""
    filler = float(node.attributes.get("mask_filter_value", -10000.0))
    shape, value = node.shape(mask), node.inputs[mask]
    batch = node.shape(0)[0]
    if shape == (batch,):
        lengths = relax.op.reshape(value, (batch, 1, 1, 1))
        numbers = _constant_like(node, np.arange(keys).reshape(1, 1, 1, keys), mask)
        bias.allow(node.emit(relax.op.less(numbers, lengths)), filler)
        return
    broadcast_shape = {(batch, keys): (batch, 1, 1, keys), (batch, queries, keys): (batch, 1, queries, keys)}.get(shape)
    if broadcast_shape is None:
        raise node.refusal(f"a mask of the shape {list(shape)} is not supported")
    valid = relax.op.greater(relax.op.reshape(value, broadcast_shape), _constant_like(node, 0, mask))
    bias.allow(node.emit(valid), filler)


@converter("com.microsoft.MultiHeadAttention")
def multi_head_attention(node: Node) -> list[Any]:
    """Convert ONNX Runtime's attention with queries, keys and values; like its CPU, without packed ones."""
    if node.input(1) is None or node.input(2) is None:
        raise node.refusal("packed queries, keys and values are not supported")
    for index in (8, 9):
        if node.input(index) is not None:
            raise node.refusal(f"input {index}, of a decoder with its own buffers, is not supported")
    heads = int(node.attributes["num_heads"])
    tensors = list(node.inputs[:3])
    if node.input(3) is not None:
        hidden = node.shape(0)[-1]
        biases = node.emit(relax.op.split(node.inputs[3], [hidden, 2 * hidden], axis=0))
        for index, tensor in enumerate(tensors):
            if len(node.shape(index)) == _RANK_ROWS:  # keys and values that have heads already include their bias
                tensors[index] = node.emit(relax.op.add(tensor, relax.TupleGetItem(biases, index)))
    split = [_split_heads(node, tensor, heads) for tensor in tensors]
    k, v = (_append_to_past(node, node.input(past), value) for past, value in ((6, split[1]), (7, split[2])))
    result = _contrib_scores(node, _Heads(split[0], k, v), 4, node.input(5))
    return [result.rows, k, v, node.emit(relax.op.astype(result.raw_scores, node.dtype(0)))][: node.outputs]


@converter("com.microsoft.GroupQueryAttention")
def group_query_attention(node: Node) -> list[Any]:
    """Convert ONNX Runtime's attention of decoders: a prompt, or what follows a past of constant length."""
    attributes = node.attributes
    unsupported = [name for name in _DECODER_ONLY if attributes.get(name, 0)]
    unsupported += [f"input {index}" for index in range(11, 16) if node.input(index) is not None]
    if unsupported or attributes.get("smooth_softmax", 0) == 1:
        raise node.refusal(f"{', '.join(unsupported) or 'smooth_softmax'} is not supported")
    q, k, v = _grouped_inputs(node)
    past = _past_length(node, node.input(3))
    if past:
        # With a past of which only a part is valid, the position of new keys would depend on the data.
        lengths = node.constant(5) if node.is_constant(5) else None
        if lengths is None or not (lengths == past + node.shape_of(q)[2] - 1).all():
            raise node.refusal("how much of the past is valid depends on the data", "export the prompt without a past")
    if attributes.get("do_rotary", 0):
        length = node.shape_of(q)[2]
        positions = node.input(9)
        if positions is None:
            positions = relax.const(np.arange(past, past + length)[None], "int64")
        interleaved = bool(node.attributes.get("rotary_interleaved", 0))
        cos, sin = (cached_rows(node, node.inputs[index], positions) for index in (7, 8))
        q, k = (rotate(node, q, cos, sin, interleaved=interleaved), rotate(node, k, cos, sin, interleaved=interleaved))
    k, v = (_append_to_past(node, node.input(index), value) for index, value in ((3, k), (4, v)))
    bias = _Bias(node, _accumulation_dtype(node))
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
    scores = _scores(_Heads(q, k, v), bias, scale=scale, softcap=softcap)
    rows = _merge_heads(node, node.emit(relax.op.astype(scores.out, node.dtype(0))))
    return [rows, k, v][: node.outputs]


# Queries, keys and values may be packed in one tensor.
def _grouped_inputs(node: Node) -> tuple[Any, Any, Any]:
    q_heads, kv_heads = (int(node.attributes[name]) for name in ("num_heads", "kv_num_heads"))
    tensors: tuple[Any, ...] = node.inputs[:3]
    if node.input(1) is None:
        size = node.shape(0)[-1] // (q_heads + 2 * kv_heads)
        cuts = [q_heads * size, (q_heads + kv_heads) * size]
        split = node.emit(relax.op.split(node.inputs[0], cuts, axis=-1))
        tensors = tuple(node.emit(relax.TupleGetItem(split, index)) for index in range(3))
    q, k, v = (
        _split_heads(node, tensor, heads) for tensor, heads in zip(tensors, (q_heads, kv_heads, kv_heads), strict=True)
    )
    return q, k, v
