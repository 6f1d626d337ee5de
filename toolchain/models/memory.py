"""Whether a model's tensors fit into this machine's memory: --shape takes any number."""

from __future__ import annotations

import math
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.errors import InputError

if TYPE_CHECKING:  # what is available is asked by those who load no ONNX, too
    import onnx

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_LARGEST = 1 << 31  # bytes that protobuf, and so shape inference, takes


def check(proto: onnx.ModelProto) -> None:
    needed, available = least_bytes(proto), available_bytes()
    if needed > available:
        sizes = ", ".join(f"{value.name} {'x'.join(map(str, _dims(value)))}" for value in proto.graph.input)
        raise InputError(
            f"one run needs {needed / 2**30:.1f} GiB or more, but this machine has {available / 2**30:.1f} GiB free",
            details=f"inputs: {sizes}",
            hint="use smaller inputs: --shape NAME:1,3,224,224",
        )


def least_bytes(proto: onnx.ModelProto) -> int:
    """Return a lower bound of the memory of one run: all inputs, or all tensors of one operator."""
    from onnx import shape_inference  # noqa: PLC0415 - see above

    sizes = {value.name: _bytes(value) for value in proto.graph.input}
    inputs = sum(sizes.values())
    if inputs > available_bytes() or proto.ByteSize() >= _LARGEST:  # more than enough, and inference could overflow
        return inputs
    inferred = shape_inference.infer_shapes(proto).graph
    sizes |= {value.name: _bytes(value) for value in [*inferred.value_info, *inferred.output]}
    nodes = (sum(sizes.get(name, 0) for name in {*node.input, *node.output}) for node in inferred.node)
    return max(inputs, *nodes, 0)


def available_bytes() -> int:
    """Return the memory that a process may use: free memory and swap space, within its limits."""
    amounts = dict(re.findall(r"^(\w+): +(\d+) kB$", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE))
    limits = [1024 * (int(amounts.get("MemAvailable", 0)) + int(amounts.get("SwapFree", 0)))]
    soft, _hard = resource.getrlimit(resource.RLIMIT_AS)
    limits += [soft] if soft != resource.RLIM_INFINITY else []
    # A container's limit, which /proc/meminfo does not show.
    text = _CGROUP.read_text(encoding="ascii").strip() if _CGROUP.is_file() else ""
    limits += [int(text)] if text.isdecimal() else []
    return min(limits)


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim]


def _bytes(value: onnx.ValueInfoProto) -> int:
    from onnx import helper  # noqa: PLC0415 - see above

    element = value.type.tensor_type.elem_type
    try:
        width = helper.tensor_dtype_to_np_dtype(element).itemsize
    except (KeyError, TypeError, ValueError):  # a sequence, or a type that numpy lacks
        return 0
    return int(math.prod(_dims(value)) * width)
