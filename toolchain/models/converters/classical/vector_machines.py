"""Support vector machines of ai.onnx.ml: how near a row is to each support vector, and what follows from that."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812 - TVM's own name for it

from toolchain.models.converters import converter
from toolchain.models.converters.classical import linear, scores
from toolchain.models.converters.classical.tree_tables import listed
from toolchain.models.converters.node import Node

_DOMAIN = "ai.onnx.ml"
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_BINARY = 2
_ROUNDS = 100  # of coupling, at most
_CERTAIN = 1e-7  # no pair is more certain than this


@converter(f"{_DOMAIN}.SVMRegressor")
def svm_regressor(node: Node) -> Any:
    """Convert SVMRegressor: one target; with `one_class`, 1 for what belongs to the class and -1 for what does not."""
    coefficients, rho = listed(node.attributes, "coefficients"), listed(node.attributes, "rho")
    count = int(node.attributes.get("n_supports", 0))
    if count:
        near = _nearness(node, count)
        if len(coefficients) != count:
            raise node.refusal(f"it has {len(coefficients)} coefficients for {count} support vectors")
        found = node.emit(relax.op.matmul(near, scores.constant(coefficients.reshape(-1, 1), "float32")))
        found = node.emit(relax.op.add(found, scores.constant(rho[:1], "float32")))
    else:
        found = linear.product(node, 1, rho[:1])
    if not node.attributes.get("one_class", 0):
        return found
    one, other = relax.const(1.0, "float32"), relax.const(-1.0, "float32")
    return relax.op.where(node.emit(relax.op.greater(found, relax.const(0.0, "float32"))), one, other)


@converter(f"{_DOMAIN}.SVMClassifier")
def svm_classifier(node: Node) -> Any:
    """Convert SVMClassifier: labels, and scores: of each pair of classes, or probabilities of the classes."""
    labels = scores.labels_of(node)
    if len(labels) < _BINARY:
        raise node.refusal(f"it has {len(labels)} classes")
    counts = listed(node.attributes, "vectors_per_class")
    return _linear_machine(node, labels) if counts.sum() == 0 else _pairwise_machine(node, labels, counts)


def _linear_machine(node: Node, labels: list[int]) -> list[Any]:
    """Return labels and scores without support vectors: one product for each class."""
    rho = np.broadcast_to(listed(node.attributes, "rho")[:1], (len(labels),))
    found = linear.product(node, len(labels), rho)
    transform = scores.post_transform(node)
    label = scores.best_label(node, found, labels)
    if len(labels) == _BINARY and not listed(node.attributes, "prob_a").size:
        most = node.emit(relax.op.max(found, 1, keepdims=True))
        if (listed(node.attributes, "coefficients") >= 0).all():
            is_second = relax.op.greater_equal(most, relax.const(0.5, "float32"))
        else:
            is_second = relax.op.greater(most, relax.const(0.0, "float32"))
        flat = node.emit(relax.op.reshape(node.emit(is_second), (node.shape_of(found)[0],)))
        label = node.emit(relax.op.where(flat, relax.const(labels[1], "int64"), label))
    return [label, scores.transformed(node, found, transform)]


def _pairwise_machine(node: Node, labels: list[int], counts: Any) -> list[Any]:
    """Return labels and scores of support vectors, which compare each class with each other one."""
    pairs = _Pairs.of(node, len(labels), [int(count) for count in counts])
    near = _nearness(node, int(counts.sum()))
    found = node.emit(relax.op.matmul(near, scores.constant(pairs.coefficients, "float32")))
    found = node.emit(relax.op.add(found, scores.constant(pairs.rho, "float32")))
    wins = node.emit(relax.op.greater(found, relax.const(0.0, "float32")))
    votes = node.emit(relax.op.matmul(node.emit(relax.op.astype(wins, "float32")), scores.constant(pairs.votes)))
    votes = node.emit(relax.op.add(votes, scores.constant(pairs.lost_votes)))
    label, transform = scores.best_label(node, votes, labels), scores.post_transform(node)
    if listed(node.attributes, "prob_a").size:
        return [label, scores.transformed(node, _probabilities(node, found, pairs), transform)]
    if len(labels) == _BINARY:
        return [label, scores.two_columns(node, found, transform, opposite=transform == "NONE")]
    return [label, scores.transformed(node, found, transform)]


@dataclass(frozen=True)
class _Pairs:
    """Every class against every later one: 0-1, 0-2, 1-2, ...

    Attributes:
        classes: How many classes there are.
        coefficients: [support vector, pair].
        rho: Of each pair.
        votes: [pair, class], what a positive score changes in the votes.
        lost_votes: [class], the votes if no score is positive.
    """

    classes: int
    coefficients: Any
    rho: Any
    votes: Any
    lost_votes: Any

    @classmethod
    def of(cls, node: Node, classes: int, counts: list[int]) -> _Pairs:
        """Read the attributes of a classifier: it has a row of coefficients less than it has classes."""
        pairs = list(itertools.combinations(range(classes), 2))
        rho, given = listed(node.attributes, "rho"), listed(node.attributes, "coefficients")
        if len(counts) != classes or given.size != (classes - 1) * sum(counts) or rho.size < len(pairs):
            raise node.refusal("its coefficients do not fit its classes and support vectors")
        rows = given.reshape(classes - 1, -1)
        owner = np.repeat(np.arange(classes), counts)
        coefficients = np.zeros((sum(counts), len(pairs)), "float32")
        votes = np.zeros((len(pairs), classes), "float32")
        lost = np.zeros(classes, "float32")
        for number, (one, other) in enumerate(pairs):
            coefficients[owner == one, number] = rows[other - 1, owner == one]
            coefficients[owner == other, number] = rows[one, owner == other]
            votes[number, one], votes[number, other] = 1, -1
            lost[other] += 1
        return cls(classes, coefficients, rho[: len(pairs)], votes, lost)


def _nearness(node: Node, count: int) -> Any:
    """Return what the kernel makes of each row and each support vector: [rows, support vectors]."""
    kind = str(node.attributes.get("kernel_type", "LINEAR"))
    if kind not in _KERNELS:
        raise node.refusal(f"its kernel_type is {kind!r}; the standard has {', '.join(_KERNELS)}")
    gamma, shift, degree = (*listed(node.attributes, "kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    data = scores.rows(node)
    given = listed(node.attributes, "support_vectors").astype("float32")
    if given.size != count * node.shape_of(data)[1]:
        raise node.refusal(f"its {given.size} numbers are not {count} support vectors of its features")
    vectors = given.reshape(count, -1)
    if kind == "RBF":
        return node.compute(_radial(gamma), data, scores.constant(vectors), name="radial_kernel")
    found = node.emit(relax.op.matmul(data, scores.constant(vectors.T)))
    if kind == "LINEAR":
        return found
    found = node.emit(relax.op.multiply(found, relax.const(gamma, "float32")))
    found = node.emit(relax.op.add(found, relax.const(shift, "float32")))
    if kind == "SIGMOID":
        return node.emit(relax.op.tanh(found))
    if degree in {2.0, 3.0}:
        square = node.emit(relax.op.multiply(found, found))
        return square if degree == _BINARY else node.emit(relax.op.multiply(square, found))
    return node.emit(relax.op.power(found, relax.const(degree, "float32")))


def _radial(gamma: float) -> Any:
    def compute(rows: te.Tensor, vectors: te.Tensor) -> te.Tensor:
        feature = te.reduce_axis((0, rows.shape[1]), "feature")

        def squared(row: Any, vector: Any) -> Any:
            distance = rows(row, feature) - vectors(vector, feature)
            return te.sum(distance * distance, axis=feature)

        total = te.compute((rows.shape[0], vectors.shape[0]), squared, "squared")
        factor = tirx.const(-gamma, "float32")
        return te.compute(total.shape, lambda *at: tirx.exp(factor * total(*at)), "radial")

    return compute


def _probabilities(node: Node, found: Any, pairs: _Pairs) -> Any:
    """Return the probabilities of the classes that agree best with those of the pairs, as libsvm couples them."""
    a, b = (listed(node.attributes, name).astype("float32") for name in ("prob_a", "prob_b"))
    if not len(a) == len(b) == len(pairs.rho):
        raise node.refusal(f"it has {len(a)} and {len(b)} parameters of probability for {len(pairs.rho)} pairs")
    scaled = node.emit(relax.op.add(node.emit(relax.op.multiply(found, scores.constant(a))), scores.constant(b)))
    each = node.emit(relax.op.subtract(relax.const(1.0, "float32"), scores.transformed(node, scaled, "LOGISTIC")))
    each = node.emit(relax.op.clip(each, _CERTAIN, 1 - _CERTAIN))

    def compute(share: te.Tensor) -> te.Tensor:
        shapes = [(int(share.shape[0]), pairs.classes)]
        return te.extern(
            shapes, [share], lambda given, made: _coupled(given[0], made[0], pairs.classes), dtype=["float32"]
        )

    return node.compute(compute, each, name="couple_probabilities")


def _coupled(given: Any, made: Any, classes: int) -> Any:
    """Write the loop that improves the probabilities of each row until they change by less than a limit."""
    with IRBuilder() as builder:
        share, result = T.buffer_proxy(given), T.buffer_proxy(made)
        with T.serial(0, int(given.shape[0])) as row:
            _Coupling(classes, share, result, row).write()
        return builder.get()


class _Coupling:
    """Writes the coupling of one row; its matrix is a table of expressions, as there are few classes."""

    def __init__(self, classes: int, share: Any, result: Any, row: Any) -> None:
        self._classes, self._result, self._row = range(classes), result, row
        self._pairs = {pair: number for number, pair in enumerate(itertools.combinations(self._classes, 2))}
        self._share = share
        sizes = {"matrix": classes * classes, "product": classes, "state": 3}
        self._buffers = {
            name: T.buffer_proxy(T.alloc_buffer((size,), "float32", scope="local")) for name, size in sizes.items()
        }

    def _wins(self, one: int, other: int) -> Any:
        if one < other:
            return self._share[self._row, self._pairs[one, other]]
        return tirx.const(1.0, "float32") - self._share[self._row, self._pairs[other, one]]

    def write(self) -> None:
        """Write the matrix, the first guess, and the rounds."""
        matrix, product, state = (self._buffers[name] for name in ("matrix", "product", "state"))
        size = len(self._classes)
        for one in self._classes:
            self._result[self._row, one] = tirx.const(1.0 / size, "float32")
            others = [other for other in self._classes if other != one]
            total = self._wins(others[0], one) * self._wins(others[0], one)
            for other in others[1:]:
                total = total + self._wins(other, one) * self._wins(other, one)
            matrix[one * size + one] = total
            for other in others:
                matrix[one * size + other] = -(self._wins(other, one) * self._wins(one, other))
        state[0] = tirx.const(0.0, "float32")  # 1 when it is done
        with T.serial(0, _ROUNDS), T.If(state[0] < tirx.const(0.5, "float32")), T.Then():
            self._measure(matrix, product, state)
            with T.If(state[2] < tirx.const(0.005 / size, "float32")), T.Then():
                state[0] = tirx.const(1.0, "float32")
            with T.If(state[0] < tirx.const(0.5, "float32")), T.Then():
                self._improve(matrix, product, state)

    def _measure(self, matrix: Any, product: Any, state: Any) -> None:
        """Write the matrix times the guess, the guess times that (1), and the greatest distance between both (2)."""
        size = len(self._classes)
        state[1] = tirx.const(0.0, "float32")
        state[2] = tirx.const(0.0, "float32")
        for one in self._classes:
            product[one] = tirx.const(0.0, "float32")
            for other in self._classes:
                product[one] = product[one] + matrix[one * size + other] * self._result[self._row, other]
            state[1] = state[1] + self._result[self._row, one] * product[one]
        for one in self._classes:
            state[2] = tirx.max(state[2], tirx.abs(product[one] - state[1]))

    def _improve(self, matrix: Any, product: Any, state: Any) -> None:
        """Write one step for each class; the step is kept in the place of the distance."""
        size, one_more = len(self._classes), tirx.const(1.0, "float32")
        for one in self._classes:
            own = matrix[one * size + one]
            state[2] = (state[1] - product[one]) / own
            self._result[self._row, one] = self._result[self._row, one] + state[2]
            grown = state[2] * (state[2] * own + tirx.const(2.0, "float32") * product[one])
            state[1] = (state[1] + grown) / (one_more + state[2]) / (one_more + state[2])
            for other in self._classes:
                product[other] = (product[other] + state[2] * matrix[one * size + other]) / (one_more + state[2])
                self._result[self._row, other] = self._result[self._row, other] / (one_more + state[2])
