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
        self._nodes_added: list[onnx.NodeProto] = []
        self._restored: dict[str, str] = {}  # names of unrounded tensors behind a restored activation

    def run(self) -> None:
        source = {node.name: node for node in self._original.nodes}
        for node in list(self._graph.node):
            if node.op_type in {_QUANTIZE, _DEQUANTIZE} or node.name in self._int8_nodes:
                continue
            for index, name in enumerate(node.input):
                if name in self._pairs:
                    node.input[index] = self._unrounded(name)
                elif node.name in source and source[node.name].input[index] in self._original.weights:
                    node.input[index] = self._weight(source[node.name].input[index])
        for value in self._graph.output:
            if value.name in self._pairs:
                self._free_result(value.name)
        self._graph.node.extend(self._nodes_added)
        self._drop_unread()
        protos.drop_unread_weights(self._graph)

    def _unrounded(self, rounded: str) -> str:
        """Return the tensor that stands for a rounded one before it was rounded."""
        before = str(self._pairs[rounded].input[0])
        tensor = before if before in self._original.makers else rounded
        maker = self._original.makers.get(tensor)
        if maker is None or maker.name in self._nodes:
            return before
        if before not in self._restored:  # a dropped activation, which is done by the rounding for other readers
            self._restored[before] = f"{tensor}.unrounded"
            activation = protos.clone(maker)
            activation.input[0] = before
            activation.output[0] = self._restored[before]
            self._nodes_added.append(activation)
            for name in activation.input[1:]:
                if name in self._original.weights:
                    self._weight(name)
        return self._restored[before]

    def _weight(self, name: str) -> str:
        """Keep a weight in floats, which a layer in int8 may share."""
        if all(tensor.name != name for tensor in self._graph.initializer):
            self._graph.initializer.append(protos.clone(self._original.weights[name]))
        return name

    def _free_result(self, name: str) -> None:
        """Let a result of the graph have the values before they are rounded."""
        unrounded, rounded = self._unrounded(name), f"{name}.rounded"
        names = {name: rounded, unrounded: name}
        for node in (*self._graph.node, *self._nodes_added):
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
