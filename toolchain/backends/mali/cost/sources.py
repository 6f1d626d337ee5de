"""OpenCL C to one source a kernel; its loops, how often each turns, and the kernel with a body of one of them twice.

The compiler counts the body of a loop once. What one more turn costs is the difference to the kernel that has the body
twice, which says so also of what the compiler moves out of a loop, merges or spills.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PART = re.compile(r"^// Function: .*$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)\s*\(", re.DOTALL)
_LOOP = re.compile(
    r"for\s*\(\s*(?P<type>int|uint|long|size_t)\s+(?P<name>\w+)\s*=\s*(?P<first>\d+)\s*;"
    r"\s*(?P=name)\s*<\s*(?P<end>\d+)\s*;\s*(?:\+\+(?P=name)|(?P=name)\+\+|(?P=name)\s*\+=\s*(?P<step>\d+))\s*\)\s*\{"
)
_ANY_LOOP = re.compile(r"\b(?:for|while|do)\b")
_MOST_LETTERS = 1 << 22


@dataclass(frozen=True)
class Kernel:
    """One kernel by itself.

    Attributes:
        name: Its name.
        source: OpenCL C with this kernel alone.
    """

    name: str
    source: str


@dataclass(frozen=True)
class Loop:
    """A loop whose bounds stand in the source.

    Attributes:
        start: Where it begins.
        body: Where its body begins, behind the brace.
        end: Where its body ends, before the brace.
        trips: How often it turns.
        name: Its variable.
        type: The variable's type.
        stop: The bound.
    """

    start: int
    body: int
    end: int
    trips: int
    name: str
    type: str
    stop: int

    def holds(self, other: Loop) -> bool:
        """Whether another loop is inside."""
        return self.body <= other.start < self.end


@dataclass(frozen=True)
class Loops:
    """The loops of a kernel.

    Attributes:
        known: Those whose bounds stand in the source, in the order of their beginnings.
        open: How many others there are.
    """

    known: tuple[Loop, ...]
    open: int


def kernels(text: str) -> tuple[Kernel, ...]:
    """Take a source apart into one for each kernel; comments are dropped.

    Args:
        text: OpenCL C: as TVM writes a module, or as people do.
    """
    head, *parts = _PART.split(text[:_MOST_LETTERS])
    found = []
    for part in [head + part for part in parts] or [head]:
        plain = _COMMENT.sub(" ", part)
        places = [match for match in _KERNEL.finditer(plain) if _is_definition(plain, match)]
        found += [Kernel(match[1], _alone(plain, match.start())) for match in places]
    return tuple(found)


def _is_definition(text: str, match: re.Match[str]) -> bool:
    closed = _closing(text, match.end() - 1, "()")
    return text[closed + 1 :].lstrip().startswith("{")


def _closing(text: str, opening: int, pair: str) -> int:
    """Return where what is opened at a place is closed; the end of the text if it never is."""
    depth = 0
    for match in re.compile("[" + re.escape(pair) + "]").finditer(text, opening):
        depth += 1 if match[0] == pair[0] else -1
        if not depth:
            return match.start()
    return len(text)


def _alone(text: str, start: int) -> str:
    """Drop all other kernels, and the declarations of kernels, which need no other place."""
    pieces, at = [], 0
    for match in _KERNEL.finditer(text):
        if match.start() == start or match.start() < at:
            continue
        pieces.append(text[at : match.start()])
        closed = _closing(text, match.end() - 1, "()")
        at = closed + 2
        if _is_definition(text, match):
            at = _closing(text, text.index("{", closed), "{}") + 1
    return "".join([*pieces, text[at:]])


def loops(source: str) -> Loops:
    """Find the loops of a kernel's source; of those in functions that it calls, nobody knows how often they run."""
    own = _KERNEL.search(source)
    known = tuple(_found(source, own.end() if own else 0))
    return Loops(known, len(_ANY_LOOP.findall(source)) - len(known))


def _found(source: str, first: int) -> Iterator[Loop]:
    for match in _LOOP.finditer(source, first):
        end = _closing(source, match.end() - 1, "{}")
        step = int(match["step"] or 1)
        trips = max(0, -(-(int(match["end"]) - int(match["first"])) // max(1, step)))
        yield Loop(match.start(), match.end(), end, trips, match["name"], match["type"], int(match["end"]))


def doubled(source: str, loop: Loop) -> str:
    """Return the source with a loop's body twice: the second time for other values of its variable."""
    body = source[loop.body : loop.end]
    later = f"{loop.name}_later"
    after = f"const {loop.type} {later} = {loop.name} + {loop.stop};"
    second = f"{{ {after} {{ {loop.type} {loop.name} = {later}; {body} }} }}"
    return f"{source[: loop.body]} {{ {body} }} {second} {source[loop.end :]}"


def remaining(found: Sequence[Loop], count: int) -> tuple[Loop, ...]:
    """Name the loops that the compiler has left: it unrolls the innermost and shortest first.

    Args:
        found: The loops of the source.
        count: How many loops its code has.
    """
    depth = {loop: sum(other.holds(loop) for other in found) for loop in found}
    order = sorted(found, key=lambda loop: (-loop.trips, depth[loop]))
    return tuple(sorted(order[:count], key=lambda loop: loop.start))


def weight(loop: Loop, found: Sequence[Loop]) -> int:
    """Return how often a loop's body runs in all: its own turns and those of the loops around it."""
    return loop.trips * math.prod(other.trips for other in found if other is not loop and other.holds(loop))
