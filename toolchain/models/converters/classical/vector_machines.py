"""Linear models and support vector machines of ai.onnx.ml, and the labels from their scores.

A linear model is a product with coefficients, a support vector machine a kernel function of rows and support vectors.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812 - TVM's own name for it

from toolchain.models.converters import Node, converter
from toolchain.models.converters.classical import scores
from toolchain.models.converters.classical.tree_tables import number_list

_DOMAIN = "ai.onnx.ml"
_BINARY = 2

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_MAX_ROUNDS = 100  # of coupling, at most
_MIN_PROBABILITY = 1e-7  # no pair is more certain than this


# Intercepts count only if there is one for each target.
@converter(f"{_DOMAIN}.LinearRegressor")
def linear_regressor(node: Node) -> Any:
    targets = int(node.attributes.get("targets", 1))
    intercepts = number_list(node.attributes, "intercepts")
    values = linear_product(node, targets, intercepts if len(intercepts) == targets else [])
    transform = scores.post_transform(node)
    return (scores.transform_one_target if targets == 1 else scores.apply_transform)(node, values, transform)


# There are as many scores as intercepts.
@converter(f"{_DOMAIN}.LinearClassifier")
def linear_classifier(node: Node) -> Any:
    intercepts, labels = number_list(node.attributes, "intercepts"), scores.class_labels(node)
    count, transform = len(intercepts), scores.post_transform(node)
    if count == 0 or (count > 1 and count > len(labels)) or (count == 1 and len(labels) != _BINARY):
        raise node.refusal(f"it has {count} intercepts for {len(labels)} classes")
    values = linear_product(node, count, intercepts)
    if count > 1:
        return [scores.best_label(node, values, labels), scores.apply_transform(node, values, transform)]
    # One score for two classes: if it is positive, the second.
    label = scores.label_where(node, node.emit(relax.op.greater(values, relax.const(0.0, "float32"))), labels)
    return [label, scores.two_columns(node, values, transform, opposite=False)]


def linear_product(node: Node, targets: int, intercepts: Any) -> Any:
    """Return the features times the coefficients, a row for each target, plus intercepts if there are any."""
    data = scores.rows(node)
    coefficients = np.asarray(node.attributes.get("coefficients", ()), "float32")
    features = node.shape_of(data)[1]
    if coefficients.size != targets * features:
        raise node.refusal(f"it has {coefficients.size} coefficients for {features} features and {targets} targets")
    products = node.emit(relax.op.matmul(data, scores.constant(coefficients.reshape(targets, features).T)))
    return node.emit(relax.op.add(products, scores.constant(intercepts, "float32"))) if len(intercepts) else products


@converter(f"{_DOMAIN}.SVMRegressor")
def svm_regressor(node: Node) -> Any:
    """Return one target; with `one_class`, 1 for members of the class and -1 for others."""
    coefficients, rho = number_list(node.attributes, "coefficients"), number_list(node.attributes, "rho")
    count = int(node.attributes.get("n_supports", 0))
    if count:
        kernel_values = _kernel_values(node, count)
        if len(coefficients) != count:
            raise node.refusal(f"it has {len(coefficients)} coefficients for {count} support vectors")
        values = node.emit(relax.op.matmul(kernel_values, scores.constant(coefficients.reshape(-1, 1), "float32")))
        values = node.emit(relax.op.add(values, scores.constant(rho[:1], "float32")))
    else:
        values = linear_product(node, 1, rho[:1])
    if not node.attributes.get("one_class", 0):
        return values
    inside, outside = relax.const(1.0, "float32"), relax.const(-1.0, "float32")
    return relax.op.where(node.emit(relax.op.greater(values, relax.const(0.0, "float32"))), inside, outside)


@converter(f"{_DOMAIN}.SVMClassifier")
def svm_classifier(node: Node) -> Any:
    """Return labels, and scores of each pair of classes or probabilities of the classes."""
    labels = scores.class_labels(node)
    if len(labels) < _BINARY:
        raise node.refusal(f"it has {len(labels)} classes")
    counts = number_list(node.attributes, "vectors_per_class")
    return _classify_linear(node, labels) if counts.sum() == 0 else _classify_by_pairs(node, labels, counts)


# Without support vectors, there is one product for each class.
def _classify_linear(node: Node, labels: list[int]) -> list[Any]:
    rho = np.broadcast_to(number_list(node.attributes, "rho")[:1], (len(labels),))
    values = linear_product(node, len(labels), rho)
    transform = scores.post_transform(node)
    label = scores.best_label(node, values, labels)
    if len(labels) == _BINARY and not number_list(node.attributes, "prob_a").size:
        greatest = node.emit(relax.op.max(values, 1, keepdims=True))
        if (number_list(node.attributes, "coefficients") >= 0).all():
            is_second = relax.op.greater_equal(greatest, relax.const(0.5, "float32"))
        else:
            is_second = relax.op.greater(greatest, relax.const(0.0, "float32"))
        flat = node.emit(relax.op.reshape(node.emit(is_second), (node.shape_of(values)[0],)))
        label = node.emit(relax.op.where(flat, relax.const(labels[1], "int64"), label))
    return [label, scores.apply_transform(node, values, transform)]


# The support vectors compare each class with each other one.
def _classify_by_pairs(node: Node, labels: list[int], counts: Any) -> list[Any]:
    pairs = _Pairs.of(node, len(labels), [int(count) for count in counts])
    kernel_values = _kernel_values(node, int(counts.sum()))
    values = node.emit(relax.op.matmul(kernel_values, scores.constant(pairs.coefficients, "float32")))
    values = node.emit(relax.op.add(values, scores.constant(pairs.rho, "float32")))
    wins = node.emit(relax.op.greater(values, relax.const(0.0, "float32")))
    votes = node.emit(relax.op.matmul(node.emit(relax.op.astype(wins, "float32")), scores.constant(pairs.votes)))
    votes = node.emit(relax.op.add(votes, scores.constant(pairs.lost_votes)))
    label, transform = scores.best_label(node, votes, labels), scores.post_transform(node)
    if number_list(node.attributes, "prob_a").size:
        return [label, scores.apply_transform(node, _class_probabilities(node, values, pairs), transform)]
    if len(labels) == _BINARY:
        return [label, scores.two_columns(node, values, transform, opposite=transform == "NONE")]
    return [label, scores.apply_transform(node, values, transform)]


@dataclass(frozen=True)
class _Pairs:
    """Every class against every later one: 0-1, 0-2, 1-2, ...

    Attributes:
        classes: Number of classes.
        coefficients: [support vector, pair].
        rho: Offset of each pair.
        votes: [pair, class], what a positive score changes in the votes.
        lost_votes: [class], the votes if no score is positive.
    """

    classes: int
    coefficients: Any
    rho: Any
    votes: Any
    lost_votes: Any

    # A classifier has a row of coefficients less than it has classes.
    @classmethod
    def of(cls, node: Node, classes: int, counts: list[int]) -> _Pairs:
        pairs = list(itertools.combinations(range(classes), 2))
        rho, numbers = number_list(node.attributes, "rho"), number_list(node.attributes, "coefficients")
        if len(counts) != classes or numbers.size != (classes - 1) * sum(counts) or rho.size < len(pairs):
            raise node.refusal("its coefficients do not fit its classes and support vectors")
        rows = numbers.reshape(classes - 1, -1)
        owner = np.repeat(np.arange(classes), counts)
        coefficients = np.zeros((sum(counts), len(pairs)), "float32")
        votes = np.zeros((len(pairs), classes), "float32")
        lost_votes = np.zeros(classes, "float32")
        for number, (first, second) in enumerate(pairs):
            coefficients[owner == first, number] = rows[second - 1, owner == first]
            coefficients[owner == second, number] = rows[first, owner == second]
            votes[number, first], votes[number, second] = 1, -1
            lost_votes[second] += 1
        return cls(classes, coefficients, rho[: len(pairs)], votes, lost_votes)


def _kernel_values(node: Node, count: int) -> Any:
    """Return the kernel function of each row and support vector: [rows, support vectors]."""
    kind = str(node.attributes.get("kernel_type", "LINEAR"))
    if kind not in _KERNELS:
        raise node.refusal(f"its kernel_type is {kind!r}; the standard has {', '.join(_KERNELS)}")
    gamma, shift, degree = (*number_list(node.attributes, "kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    data = scores.rows(node)
    numbers = number_list(node.attributes, "support_vectors").astype("float32")
    if numbers.size != count * node.shape_of(data)[1]:
        raise node.refusal(f"its {numbers.size} numbers are not {count} support vectors of its features")
    vectors = numbers.reshape(count, -1)
    if kind == "RBF":
        return node.compute(_radial_kernel(gamma), data, scores.constant(vectors), name="radial_kernel")
    products = node.emit(relax.op.matmul(data, scores.constant(vectors.T)))
    if kind == "LINEAR":
        return products
    products = node.emit(relax.op.multiply(products, relax.const(gamma, "float32")))
    products = node.emit(relax.op.add(products, relax.const(shift, "float32")))
    if kind == "SIGMOID":
        return node.emit(relax.op.tanh(products))
    if degree in {2.0, 3.0}:
        square = node.emit(relax.op.multiply(products, products))
        return square if degree == _BINARY else node.emit(relax.op.multiply(square, products))
    return node.emit(relax.op.power(products, relax.const(degree, "float32")))


def _radial_kernel(gamma: float) -> Any:
    def compute(rows: te.Tensor, vectors: te.Tensor) -> te.Tensor:
        feature = te.reduce_axis((0, rows.shape[1]), "feature")

        def squared(row: Any, vector: Any) -> Any:
            distance = rows(row, feature) - vectors(vector, feature)
            return te.sum(distance * distance, axis=feature)

        total = te.compute((rows.shape[0], vectors.shape[0]), squared, "squared")
        factor = tirx.const(-gamma, "float32")
        return te.compute(total.shape, lambda *index: tirx.exp(factor * total(*index)), "radial")

    return compute


def _class_probabilities(node: Node, values: Any, pairs: _Pairs) -> Any:
    """Return the probabilities of the classes that agree best with those of the pairs, as libsvm couples them."""
    a, b = (number_list(node.attributes, name).astype("float32") for name in ("prob_a", "prob_b"))
    if not len(a) == len(b) == len(pairs.rho):
        raise node.refusal(f"it has {len(a)} and {len(b)} parameters of probability for {len(pairs.rho)} pairs")
    scaled = node.emit(relax.op.add(node.emit(relax.op.multiply(values, scores.constant(a))), scores.constant(b)))
    logistic = scores.apply_transform(node, scaled, "LOGISTIC")
    probabilities = node.emit(relax.op.subtract(relax.const(1.0, "float32"), logistic))
    probabilities = node.emit(relax.op.clip(probabilities, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY))

    def write(inputs: Any, outputs: Any) -> Any:
        with IRBuilder() as builder:
            pair_probabilities, result = T.buffer_proxy(inputs[0]), T.buffer_proxy(outputs[0])
            with T.serial(0, int(inputs[0].shape[0])) as row:
                _Coupling(pairs.classes, pair_probabilities, result, row).write()
            return builder.get()

    def compute(share: te.Tensor) -> te.Tensor:
        return te.extern([(int(share.shape[0]), pairs.classes)], [share], write, dtype=["float32"])

    return node.compute(compute, probabilities, name="couple_probabilities")


class _Coupling:
    """Writes the loop that improves the probabilities of a row until they change by less than a limit.

    Its matrix is a table of expressions, as there are few classes.
    """

    def __init__(self, classes: int, pair_probabilities: Any, result: Any, row: Any) -> None:
        self._classes, self._result, self._row = range(classes), result, row
        self._pairs = {pair: number for number, pair in enumerate(itertools.combinations(self._classes, 2))}
        self._pair_probabilities = pair_probabilities
        sizes = {"matrix": classes * classes, "product": classes, "state": 3}
        self._buffers = {
            name: T.buffer_proxy(T.alloc_buffer((size,), "float32", scope="local")) for name, size in sizes.items()
        }

    def _wins(self, first: int, second: int) -> Any:
        if first < second:
            return self._pair_probabilities[self._row, self._pairs[first, second]]
        return tirx.const(1.0, "float32") - self._pair_probabilities[self._row, self._pairs[second, first]]

    def write(self) -> None:
        matrix, product, state = (self._buffers[name] for name in ("matrix", "product", "state"))
        size = len(self._classes)
        for i in self._classes:
            self._result[self._row, i] = tirx.const(1.0 / size, "float32")
            others = [j for j in self._classes if j != i]
            total = self._wins(others[0], i) * self._wins(others[0], i)
            for j in others[1:]:
                total = total + self._wins(j, i) * self._wins(j, i)
            matrix[i * size + i] = total
            for j in others:
                matrix[i * size + j] = -(self._wins(j, i) * self._wins(i, j))
        state[0] = tirx.const(0.0, "float32")  # 1 when it is done
        with T.serial(0, _MAX_ROUNDS), T.If(state[0] < tirx.const(0.5, "float32")), T.Then():
            self._measure(matrix, product, state)
            with T.If(state[2] < tirx.const(0.005 / size, "float32")), T.Then():
                state[0] = tirx.const(1.0, "float32")
            with T.If(state[0] < tirx.const(0.5, "float32")), T.Then():
                self._improve(matrix, product, state)

    def _measure(self, matrix: Any, product: Any, state: Any) -> None:
        """Write the product of matrix and guess, its product with the guess (state 1), and their distance (state 2)."""
        size = len(self._classes)
        state[1] = tirx.const(0.0, "float32")
        state[2] = tirx.const(0.0, "float32")
        for i in self._classes:
            product[i] = tirx.const(0.0, "float32")
            for j in self._classes:
                product[i] = product[i] + matrix[i * size + j] * self._result[self._row, j]
            state[1] = state[1] + self._result[self._row, i] * product[i]
        for i in self._classes:
            state[2] = tirx.max(state[2], tirx.abs(product[i] - state[1]))

    def _improve(self, matrix: Any, product: Any, state: Any) -> None:
        """Write one step for each class; state 2 holds the step."""
        size, unity = len(self._classes), tirx.const(1.0, "float32")
        for i in self._classes:
            diagonal = matrix[i * size + i]
            state[2] = (state[1] - product[i]) / diagonal
            self._result[self._row, i] = self._result[self._row, i] + state[2]
            grown = state[2] * (state[2] * diagonal + tirx.const(2.0, "float32") * product[i])
            state[1] = (state[1] + grown) / (unity + state[2]) / (unity + state[2])
            for j in self._classes:
                product[j] = (product[j] + state[2] * matrix[i * size + j]) / (unity + state[2])
                self._result[self._row, j] = self._result[self._row, j] / (unity + state[2])
