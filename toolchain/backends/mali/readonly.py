"""`const` for the pointers of OpenCL kernels through which nothing is written: TVM's text has it nowhere.

With `restrict`, which TVM's text has, it tells a driver's compiler that no write of the kernel changes what it loads.
What this cannot tell for certain stays as it is; should it take a pointer that is written to for one that is not, every
compiler refuses the kernel, unless it writes through a cast, which counts as a write here.
"""

from __future__ import annotations

import re

_HEAD = re.compile(r"^__kernel void (\w+)\(([^)]*)\)( ?[{;])", re.MULTILINE)
_POINTER = re.compile(r"__global (\w+)\*( restrict)? (\w+)")
_BODY_END = "\n}"
_CHANGED = re.compile(r"\+\+|--|[-+*/%&|^]=|<<=|>>=|(?:^|[(,=])\s*&(?!&)")
_READ = re.compile(r"(\bvload(_half)?\d*|\*\(?\(__global \w+\*\))$")


def read_only(source: str) -> str:
    """Declare the pointers of a module's kernels that are only read as such.

    Args:
        source: OpenCL C as TVM writes it: one statement in a line.
    """
    read_names = {}
    for head in _HEAD.finditer(source):
        end = source.find(_BODY_END, head.end())
        if head[3].endswith("{") and end >= 0:
            body = source[head.end() : end + 1]
            names = [name for _kind, _restrict, name in _POINTER.findall(head[2])]
            read_names[head[1]] = {name for name in names if _is_only_read(name, body)}
    return _HEAD.sub(lambda head: _head(head, read_names.get(head[1], set())), source)


def _head(head: re.Match[str], names: set[str]) -> str:
    """Return a kernel's head, of its definition or before it, with what is only read as const."""
    arguments = _POINTER.sub(
        lambda match: f"__global {'const ' * (match[3] in names)}{match[0][len('__global ') :]}", head[2]
    )
    return f"__kernel void {head[1]}({arguments}){head[3]}"


def _is_only_read(name: str, body: str) -> bool:
    pattern = re.compile(rf"\b{name}\b")
    return all(_reads(line, pattern) for line in body.splitlines() if pattern.search(line))


def _reads(line: str, pattern: re.Pattern[str]) -> bool:
    """Tell whether all that a statement does with a pointer is to load through it."""
    if _CHANGED.search(line) or pattern.search(_assigned(line)):
        return False
    return all(
        line[use.end() :].startswith("[") or _READ.search(_before(line, use.start())) for use in pattern.finditer(line)
    )


def _assigned(line: str) -> str:
    """Return what stands before the sign of an assignment; empty where there is none."""
    depth = 0
    for index, sign in enumerate(line):
        depth += (sign in "([") - (sign in ")]")
        if sign == "=" and depth == 0 and line[index + 1 : index + 2] != "=" and line[index - 1] not in "=<>!":
            return line[:index]
    return ""


def _before(line: str, position: int) -> str:
    """Return what stands before the parenthesis around a place; all of it if there is none."""
    depth = 0
    for index in range(position - 1, -1, -1):
        depth += (line[index] == ")") - (line[index] == "(")
        if depth < 0:
            return line[:index]
    return ""
