"""Float parts of a network in QDQ form read tensors before they are rounded: only integer layers need bytes.

ONNX Runtime's quantizer rounds a tensor for all of its readers, and drops a ReLU or clip whose work the rounding does.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from toolchain.models import protos
from toolchain.quantize.graph import Graph

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def unround(proto: onnx.ModelProto, original: Graph, int8_nodes: Collection[str]) -> None:
    """Change a network in QDQ form, in place; its nodes are not in order afterwards.

    Args:
        proto: The network.
        original: The float network that it was made from, with a name for each node.
        int8_nodes: Names of the nodes that read bytes; all others, and the results, get unrounded tensors.
    """
    _Unrounding(proto, original, frozenset(int8_nodes)).run()


class _Unrounding:
    def __init__(self, proto: onnx.ModelProto, original: Graph, int8_nodes: frozenset[str]) -> None:
        self._graph = proto.graph
        self._original = original
        self._int8_nodes = int8_nodes
        makers = {name: node for node in proto.graph.node for name in node.output}
        self._nodes = {node.name: node for node in proto.graph.node}
        # By the tensor that a DequantizeLinear makes: the QuantizeLinear before it.
        self._pairs = {
            node.output[0]: makers[node.input[0]]
            for node in proto.graph.node
            if node.op_type == _DEQUANTIZE and node.input[0] in makers
        }
        self._added: list[onnx.NodeProto] = []
        self._tensors = makers.keys()
        self._weights: dict[str, str] = {tensor.name: tensor.name for tensor in proto.graph.initializer}
        self._restored: dict[str, str] = {}  # names of unrounded tensors behind activations that were dropped

    def run(self) -> None:
        originals = {node.name: node for node in self._original.nodes}
        for node in list(self._graph.node):
            if node.op_type in {_QUANTIZE, _DEQUANTIZE} or node.name in self._int8_nodes:
                continue
            original = originals[node.name]
            for index, name in enumerate(node.input):
                if name in self._pairs:
                    node.input[index] = self._unrounded(name)
                elif original.input[index] in self._original.weights:
                    node.input[index] = self._weight(original.input[index])
        for value in self._graph.output:
            if value.name in self._pairs:
                self._free_result(value.name)
        self._graph.node.extend(self._added)
        self._drop_unread()
        protos.drop_unread_weights(self._graph)

    def _unrounded(self, rounded: str) -> str:
        """Return the tensor that stands for a rounded one before it was rounded."""
        before = str(self._pairs[rounded].input[0])
        tensor = before if before in self._original.makers else rounded
        if before not in self._restored:
            self._restored[before] = self._restore_activations(before, tensor)
        return self._restored[before]

    def _restore_activations(self, before: str, tensor: str) -> str:
        """Add the activations that were dropped before a tensor, as the rounding does their work for other readers."""
        dropped: list[onnx.NodeProto] = []
        maker = self._original.makers.get(tensor)
        while maker is not None and maker.name not in self._nodes:
            dropped.insert(0, maker)
            maker = self._original.makers.get(maker.input[0])
        for node in dropped:
            activation = protos.clone(node)
            for index, name in enumerate(activation.input):
                if name in self._original.weights:
                    activation.input[index] = self._weight(name)
            activation.input[0] = before
            before = f"{node.output[0]}.unrounded"
            activation.output[0] = before
            self._added.append(activation)
        return before

    def _weight(self, name: str) -> str:
        """Return a weight in floats; a layer in int8 may have it, too, and a bias there keeps its name."""
        if name not in self._weights:
            self._weights[name] = f"{name}.float" if name in self._tensors else name
            self._graph.initializer.append(protos.clone(self._original.weights[name], self._weights[name]))
        return self._weights[name]

    def _free_result(self, name: str) -> None:
        """Let a result of the graph have the values before they are rounded."""
        unrounded, rounded = self._unrounded(name), f"{name}.rounded"
        names = {name: rounded, unrounded: name}
        for node in (*self._graph.node, *self._added):
            for field in (node.input, node.output):
                for index, tensor in enumerate(field):
                    field[index] = names.get(tensor, tensor)

    def _drop_unread(self) -> None:
        """Drop the rounding of tensors that nothing reads."""
        results = {value.name for value in self._graph.output}
        nodes = list(self._graph.node)
        while True:
            read = {name for node in nodes for name in node.input} | results
            kept = [node for node in nodes if node.op_type not in {_QUANTIZE, _DEQUANTIZE} or read & set(node.output)]
            if len(kept) == len(nodes):
                break
            nodes = kept
        protos.set_repeated(self._graph.node, [protos.clone(node) for node in nodes])
