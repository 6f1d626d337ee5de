"""OpenCL C to one source a kernel; its loops, how often each turns, and the kernel with a body of one of them twice.

The compiler counts the body of a loop once. What one more turn costs is the difference to the kernel that has the body
twice, which says so also of what the compiler moves out of a loop, merges or spills.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolchain.errors import InputError

_PART = re.compile(r"^// Function: .*$", re.MULTILINE)
# A text in quotes may hold what looks like a comment, and the other way round: one search finds both.
_QUIET = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.MULTILINE)
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
        bounded: Those whose bounds stand in the source, in the order of their beginnings.
        unbounded: How many others there are.
    """

    bounded: tuple[Loop, ...]
    unbounded: int


def kernels(text: str) -> tuple[Kernel, ...]:
    """Split a source into one for each kernel; comments are dropped.

    Args:
        text: OpenCL C: as TVM writes a module, or as people do.

    Raises:
        InputError: It is too long to be searched.
    """
    if len(text) > _MOST_LETTERS:
        raise InputError(
            f"{len(text)} characters of OpenCL C are too many; at most {_MOST_LETTERS} are allowed",
            hint="split it into several files",
        )
    head, *sections = _PART.split(text)
    result = []
    for section in [head + section for section in sections] or [head]:
        plain = _QUIET.sub(lambda match: " " if match[0].startswith("/") else match[0], section)
        code = _code(plain)
        definitions = [match for match in _KERNEL.finditer(code) if _opening(code, match) is not None]
        result += [Kernel(match[1], _alone(plain, code, match.start())) for match in definitions]
    return tuple(result)


def _code(text: str, *, directives: bool = False) -> str:
    """Return a text of the same length where only code stands: no comments, no texts, and perhaps no directives."""
    plain = _QUIET.sub(lambda match: " " * len(match[0]), text)
    return plain if directives else _DIRECTIVE.sub(lambda match: " " * len(match[0]), plain)


def _opening(code: str, match: re.Match[str]) -> int | None:
    """Return where the brace of a kernel's definition is; None of a declaration."""
    closed = _closing(code, match.end() - 1, "()") + 1
    brace = closed + len(code[closed:]) - len(code[closed:].lstrip())
    return brace if code.startswith("{", brace) else None


def _closing(text: str, opening: int, pair: str) -> int:
    """Return where what is opened at a place is closed; the end of the text if it never is."""
    depth = 0
    for match in re.compile("[" + re.escape(pair) + "]").finditer(text, opening):
        depth += 1 if match[0] == pair[0] else -1
        if not depth:
            return match.start()
    return len(text)


def _alone(text: str, code: str, start: int) -> str:
    """Drop all other kernels, and the declarations of kernels, which need no other place."""
    pieces, position = [], 0
    for match in _KERNEL.finditer(code):
        if match.start() == start or match.start() < position:
            continue
        pieces.append(text[position : match.start()])
        brace = _opening(code, match)
        position = _closing(code, match.end() - 1, "()") + 2 if brace is None else _closing(code, brace, "{}") + 1
    return "".join([*pieces, text[position:]])


def loops(source: str) -> Loops:
    """Find the loops of a kernel's source.

    How often loops in functions or macros run, before the kernel or behind it, is unknown.
    """
    code = _code(source)
    kernel = _KERNEL.search(code)
    brace = _opening(code, kernel) if kernel else None
    bounded = () if brace is None else tuple(_found(code, brace, _closing(code, brace, "{}")))
    return Loops(bounded, len(_ANY_LOOP.findall(_code(source, directives=True))) - len(bounded))


def _found(code: str, first: int, last: int) -> Iterator[Loop]:
    for match in _LOOP.finditer(code, first, last):
        end = _closing(code, match.end() - 1, "{}")
        step = int(match["step"] or 1)
        trips = max(0, -(-(int(match["end"]) - int(match["first"])) // max(1, step)))
        yield Loop(match.start(), match.end(), end, trips, match["name"], match["type"], int(match["end"]))


def double_body(source: str, loop: Loop) -> str:
    """Return the source with a loop's body twice: the second time for other values of its variable."""
    body = source[loop.body : loop.end]
    later = f"{loop.name}_later"
    after = f"const {loop.type} {later} = {loop.name} + {loop.stop};"
    second = f"{{ {after} {{ {loop.type} {loop.name} = {later}; {body} }} }}"
    return f"{source[: loop.body]} {{ {body} }} {second} {source[loop.end :]}"


def remaining_loops(all_loops: Sequence[Loop], count: int) -> tuple[Loop, ...]:
    """Name the loops that the compiler has left: it unrolls the innermost and shortest first.

    Args:
        all_loops: The loops of the source.
        count: How many loops its code has.
    """
    # The shortest loops are unrolled first, and of equal ones the innermost.
    depth = {loop: sum(other.holds(loop) for other in all_loops) for loop in all_loops}
    order = sorted(all_loops, key=lambda loop: (-loop.trips, depth[loop]))
    return tuple(sorted(order[:count], key=lambda loop: loop.start))


def total_trips(loop: Loop, all_loops: Sequence[Loop]) -> int:
    """Return how often a loop's body runs in all: its own turns and those of the loops around it."""
    return loop.trips * math.prod(other.trips for other in all_loops if other is not loop and other.holds(loop))
