"""The kernels of a bundle, read from its graph as text: what each computes, on which shapes. Needs no TVM."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

_HEAD = re.compile(r"^    def ([A-Za-z_]\w{0,199})\((.*)\):$")
_BUFFER = re.compile(r'\w+: T\.Buffer\(\(((?:T\.int64\(\d{1,18}\)|[\d, ])*)\), "(\w{1,20})"')
_SIZE = re.compile(r"\d{1,18}")
_MAX_KERNELS = 20_000
_MAX_BUFFERS = 64
_MAX_OPERATIONS = 10**18
_MAX_NODES, _LONGEST_NAME = 1000, 500
_ENTRY = "main"  # of a network with one set of shapes
_ATTRIBUTES = ("layer", "exact", "choice", "operations")


@dataclass(frozen=True)
class Kernel:
    name: str  # its function's name, which a library and a device know it by
    buffers: tuple[tuple[str, tuple[int, ...]], ...]  # type and shape of each argument in order, the result last
    layer: str = ""  # the template's layer, as JSON; empty without a template
    exact: str = ""  # the same with the buffers of its network; empty where a backend makes no difference
    choice: str = ""  # the template's choice, as JSON; may be empty
    operations: int = 0  # arithmetic operations of one call, as the compiler counted them; 0 where it did not
    # for each call of it in a run, in order, the nodes of the model's file that the call computes, the one with most of
    # the work first; empty in bundles of older toolchains
    nodes: tuple[tuple[str, ...], ...] = ()

    @property
    def shape(self) -> str:
        """The arguments' shapes, such as `1x3x224x224, 32x3x3x3 -> 1x32x112x112`."""
        *arguments, result = ["x".join(map(str, shape)) or "scalar" for _, shape in self.buffers] or [""]
        return f"{', '.join(arguments)} -> {result}" if arguments else result

    def nodes_of(self, call: int, calls: int) -> tuple[str, ...]:
        """Return the nodes that a call computes, the most expensive first.

        Args:
            call: Number of the call within a run, from 0 on.
            calls: Calls within a run. A network that is computed row by row has a multiple of the graph's number; with
                any other number the nodes are unknown.
        """
        count = len(self.nodes)
        return self.nodes[call % count] if count and calls % count == 0 else ()

    @property
    def is_float32(self) -> bool:
        """Whether all of its arguments are float32, to which a measured peak applies."""
        return bool(self.buffers) and all(dtype == "float32" for dtype, _ in self.buffers)


def read(text: str, entry: str = _ENTRY) -> Mapping[str, Kernel]:
    """Return the kernels of a graph by name, with the nodes of their calls by a function; anything else is skipped.

    It comes from a package or a device, and is not trusted.
    """
    kernels: dict[str, Kernel] = {}
    nodes: Mapping[str, list[tuple[str, ...]]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        attributes = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith(f"    def {entry}("):
            nodes = _nodes(_attribute(attributes, "toolchain.nodes"))
        head = _HEAD.match(line)
        if head and len(kernels) < _MAX_KERNELS and "T.Buffer" in line:
            buffers = [
                (dtype, tuple(int(size) for size in _SIZE.findall(shape.replace("T.int64", ""))))
                for shape, dtype in _BUFFER.findall(head[2])[:_MAX_BUFFERS]
            ]
            layer, exact, choice, counted = (_attribute(attributes, f"toolchain.{key}") for key in _ATTRIBUTES)
            operations = min(int(counted), _MAX_OPERATIONS) if _SIZE.fullmatch(counted) else 0
            kernels[head[1]] = Kernel(head[1], tuple(buffers), layer, exact, choice, operations)
    return {name: replace(kernel, nodes=tuple(nodes.get(name, ()))) for name, kernel in kernels.items()}


def _nodes(text: str) -> Mapping[str, list[tuple[str, ...]]]:
    """Return the nodes of each kernel's calls; none where the text has another form."""
    nodes: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    try:
        for kernel, names in json.loads(text or "[]"):
            nodes[str(kernel)].append(tuple(str(name)[:_LONGEST_NAME] for name in names[:_MAX_NODES]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return nodes


def _attribute(line: str, key: str) -> str:
    """Return an attribute's text, which is written as a Python literal; empty without one."""
    match = re.search(rf'"{re.escape(key)}": ("(?:[^"\\]|\\.)*")', line)
    if match is None:
        return ""
    try:
        return str(ast.literal_eval(match[1]))
    except (SyntaxError, ValueError):
        return ""
