"""The kernels of a bundle, as its graph in words tells of them: what each computes, on which shapes; knows no TVM."""

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
_MOST_KERNELS = 20_000
_MOST_BUFFERS = 64
_MOST_OPERATIONS = 10**18
_MOST_NODES, _LONGEST_NAME = 1000, 500
_ENTRY = "    def main("
_ATTRIBUTES = ("layer", "exact", "choice", "operations")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a graph."""

    name: str  # its function's name, which a library and a device know it by
    buffers: tuple[tuple[str, tuple[int, ...]], ...]  # type and shape of each argument in order, the result last
    layer: str = ""  # what a template computes with it, as JSON; empty where there is none
    exact: str = ""  # the same with the buffers of its network; empty where a backend tells no difference
    choice: str = ""  # how a template wrote it, as JSON; empty where none is told
    operations: int = 0  # arithmetic operations of one call, as the compiler counted them; 0 where it did not
    # for each call of it in a run, in order, the nodes of the model's file that the call computes, the one with most of
    # the work first; empty in bundles of older toolchains
    nodes: tuple[tuple[str, ...], ...] = ()

    @property
    def shape(self) -> str:
        """The arguments' shapes, such as `1x3x224x224, 32x3x3x3 -> 1x32x112x112`."""
        *given, result = ["x".join(map(str, shape)) or "scalar" for _, shape in self.buffers] or [""]
        return f"{', '.join(given)} -> {result}" if given else result

    def nodes_of(self, call: int, calls: int) -> tuple[str, ...]:
        """Return the nodes that a call of it computes, the first one being number 0.

        Args:
            call: Which call of a run.
            calls: How many a run makes; where the graph has another number, nobody knows which is which.
        """
        return self.nodes[call] if len(self.nodes) == calls else ()

    @property
    def is_float32(self) -> bool:
        """Whether all of its numbers are float32, which a measured peak is of."""
        return bool(self.buffers) and all(dtype == "float32" for dtype, _ in self.buffers)


def read(text: str) -> Mapping[str, Kernel]:
    """Return the kernels of a graph in words by name; what is none is passed over.

    Args:
        text: `graph.txt` of a bundle. It comes from a package or a device, so only its form is believed.
    """
    found: dict[str, Kernel] = {}
    nodes: Mapping[str, list[tuple[str, ...]]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        attributes = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith(_ENTRY):
            nodes = _nodes(_attribute(attributes, "toolchain.nodes"))
        head = _HEAD.match(line)
        if head and len(found) < _MOST_KERNELS and "T.Buffer" in line:
            found[head[1]] = _kernel(head[1], head[2], attributes)
    return {name: replace(kernel, nodes=tuple(nodes.get(name, ()))) for name, kernel in found.items()}


def _nodes(text: str) -> Mapping[str, list[tuple[str, ...]]]:
    """Return the nodes of each kernel's calls; none where the text is anything else."""
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    try:
        for kernel, names in json.loads(text or "[]"):
            found[str(kernel)].append(tuple(str(name)[:_LONGEST_NAME] for name in names[:_MOST_NODES]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return found


def _kernel(name: str, arguments: str, attributes: str) -> Kernel:
    buffers = [
        (dtype, tuple(int(size) for size in _SIZE.findall(shape.replace("T.int64", ""))))
        for shape, dtype in _BUFFER.findall(arguments)[:_MOST_BUFFERS]
    ]
    layer, exact, choice, counted = (_attribute(attributes, f"toolchain.{key}") for key in _ATTRIBUTES)
    operations = int(counted) if re.fullmatch(r"\d{1,18}", counted) else 0
    return Kernel(name, tuple(buffers), layer, exact, choice, min(operations, _MOST_OPERATIONS))


def _attribute(line: str, key: str) -> str:
    """Return the text of an attribute, which is written as Python writes it; empty without one."""
    found = re.search(rf'"{re.escape(key)}": ("(?:[^"\\]|\\.)*")', line)
    if found is None:
        return ""
    try:
        return str(ast.literal_eval(found[1]))
    except (SyntaxError, ValueError):
        return ""
