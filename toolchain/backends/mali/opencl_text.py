"""What is changed in the OpenCL C that TVM writes, before a driver compiles it.

TVM's generator is made for CUDA first. Each rewrite knows one thing that it writes wrongly or too carefully for OpenCL.
They read the text in the form that TVM gives it: one statement in a line.
"""

from __future__ import annotations

import re
from typing import Any

import tvm_ffi

from toolchain.backends.mali.images import read_images
from toolchain.backends.mali.opencl_functions import add_dot_helpers, add_limit_helpers
from toolchain.backends.mali.opencl_vectors import align_vectors, negate_shared_conditions, write_byte_vectors

# --- const pointers --------------------------------------------------------------------------------------------------

# TVM never writes `const`. With `restrict`, which it does write, that tells a driver's compiler that no store of the
# kernel changes what it loads. A pointer whose use is unclear stays as it is. Should this be wrong about a pointer,
# every compiler refuses the kernel; the exception would be a store through a cast, which counts as a store here.

_HEAD = re.compile(r"^__kernel void (\w+)\(([^)]*)\)( ?[{;])", re.MULTILINE)
_POINTER = re.compile(r"__global (\w+)\*( restrict)? (\w+)")
_BODY_END = "\n}"
_CHANGED = re.compile(r"\+\+|--|[-+*/%&|^]=|<<=|>>=|(?:^|[(,=])\s*&(?!&)")
_READ = re.compile(r"(\bvload(_half)?\d*|\*\(?\(__global \w+\*\))$")


def declare_const(source: str) -> str:
    """Declare the pointers of a module's kernels that are only read as such.

    Args:
        source: OpenCL C as TVM writes it: one statement in a line.
    """
    read_names: dict[str, set[str]] = {}  # by kernel
    for head in _HEAD.finditer(source):
        end = source.find(_BODY_END, head.end())
        if head[3].endswith("{") and end >= 0:
            lines = source[head.end() : end + 1].splitlines()
            names = {name: re.compile(rf"\b{name}\b") for _kind, _restrict, name in _POINTER.findall(head[2])}
            read_names[head[1]] = {
                name
                for name, pattern in names.items()
                if all(_reads(line, pattern) for line in lines if pattern.search(line))
            }

    def with_const(head: re.Match[str]) -> str:
        names = read_names.get(head[1], set())
        arguments = _POINTER.sub(
            lambda match: f"__global {'const ' * (match[3] in names)}{match[0][len('__global ') :]}", head[2]
        )
        return f"__kernel void {head[1]}({arguments}){head[3]}"

    # Declarations before the definition have to agree with it.
    return _HEAD.sub(with_const, source)


def _reads(line: str, pattern: re.Pattern[str]) -> bool:
    """Whether all that a statement does with a pointer is to load through it."""
    # A pointer whose address is taken, or that is assigned to, may be written to by what follows.
    if _CHANGED.search(line) or pattern.search(_assigned(line)):
        return False
    return all(
        line[use.end() :].startswith("[") or _READ.search(_before(line, use.start())) for use in pattern.finditer(line)
    )


def _assigned(line: str) -> str:
    """Return the left side of an assignment; empty for another statement."""
    depth = 0
    for index, sign in enumerate(line):
        depth += (sign in "([") - (sign in ")]")
        if sign == "=" and depth == 0 and line[index + 1 : index + 2] != "=" and line[index - 1] not in "=<>!":
            return line[:index]
    return ""


def _before(line: str, position: int) -> str:
    """Return what stands before the parenthesis around a position; empty if there is none."""
    depth = 0
    for index in range(position - 1, -1, -1):
        depth += (line[index] == ")") - (line[index] == "(")
        if depth < 0:
            return line[:index]
    return ""


# --- all rewrites ----------------------------------------------------------------------------------------------------

REWRITES = (
    negate_shared_conditions,
    write_byte_vectors,
    align_vectors,
    declare_const,
    read_images,  # needs const pointers and aligned loads
    add_limit_helpers,
    add_dot_helpers,
)
"""In this order."""


def register() -> None:
    """Have TVM call the rewrites for each OpenCL module that it writes in this process."""
    tvm_ffi.register_global_func("tvm_callback_opencl_postproc", _rewrite, override=True)


def _rewrite(source: str, target: Any) -> str:  # noqa: ARG001 - TVM passes it
    for rewrite in REWRITES:
        source = rewrite(source)
    return source
