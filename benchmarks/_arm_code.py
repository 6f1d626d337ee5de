"""What the inner loops of Arm code consist of, counted in the assembly text that LLVM writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"([.\w$]+):")
_COMMENT = re.compile(r"\s*(//|@|;).*")
_CONDITIONS = "eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le"
_BRANCH = re.compile(rf"(?P<word>b|cbn?z|tbn?z|b\.?(?:{_CONDITIONS}))\s.*?(?P<to>\.L\w+)$")
_END = re.compile(r"(ret|br|bx|b|udf|brk)\b|pop\s.*pc\}|ldm.*pc\}")
_POINTER_TO_STACK = re.compile(r"(?:add|sub|mov)\s+(?P<to>\w+), sp\b")
_WRITTEN = re.compile(r"[a-z0-9.]+\s+(?P<to>[wxr]\d+|lr|ip)\b")

_MULTIPLY_ADD = re.compile(r"fml[as]\s+v\d+\.(4s|8h)|v(fma|fms|mla|mls)\.f32\s+q")
_MULTIPLY = re.compile(r"fmul\s+v\d+\.4s|vmul\.f32\s+q")
_LOAD = re.compile(r"v?ld")
_STORE = re.compile(r"v?st")
_OF_VECTOR = re.compile(r"(ldr|str|ldp|stp|ldur|stur)\s+[qds]\d|v(ld|st)")
_ADDRESS = re.compile(r"\[(\w+)|v(?:ld|st)m\w*\s+(\w+)")


@dataclass(frozen=True)
class Loop:
    """The instructions of one loop.

    Attributes:
        instructions: All of them.
        multiply_adds: Those that add a product to a sum, on vectors of four floats.
        by_element: Those among them that take the one factor from a lane of a register.
        multiplies: Products of vectors of four floats that another instruction has to add.
        loads: From memory, also from the stack.
        stores: To memory, also to the stack.
        spills: Loads and stores of vector registers on the stack.
    """

    instructions: int = 0
    multiply_adds: int = 0
    by_element: int = 0
    multiplies: int = 0
    loads: int = 0
    stores: int = 0
    spills: int = 0

    @property
    def share(self) -> float:
        """Multiply-adds among all instructions."""
        return self.multiply_adds / self.instructions if self.instructions else 0.0


@dataclass
class _Block:
    """Instructions that are executed one after the other, and where they go on: numbers of blocks."""

    code: list[str]
    next: tuple[int, ...] = ()


def product_loops(assembly: str) -> list[Loop]:
    """Return the innermost loops with products of vectors, the one with the most multiply-adds first.

    Where there are none, that is the one with the most products alone.
    """
    blocks = _blocks(assembly)
    found = [_counted([line for number in body for line in blocks[number].code]) for body in _inner(blocks)]
    loops = [loop for loop in found if loop.multiply_adds or loop.multiplies]
    return sorted(loops, key=lambda loop: (loop.multiply_adds, loop.multiplies), reverse=True)


def _counted(code: Sequence[str]) -> Loop:
    products = [line for line in code if _MULTIPLY_ADD.match(line)]
    return Loop(
        instructions=len(code),
        multiply_adds=len(products),
        by_element=sum(line.endswith("]") for line in products),
        multiplies=sum(bool(_MULTIPLY.match(line)) for line in code),
        loads=sum(bool(_LOAD.match(line)) for line in code),
        stores=sum(bool(_STORE.match(line)) for line in code),
        spills=sum(_spills(code)),
    )


def _spills(code: Sequence[str]) -> Iterator[bool]:
    """Tell of each instruction whether it moves a vector from or to the stack, by whatever register points there."""
    pointers = {"sp"}
    for line in code:
        address = _ADDRESS.search(line)
        yield bool(_OF_VECTOR.match(line) and address and (address[1] or address[2]) in pointers)
        if made := _POINTER_TO_STACK.match(line):
            pointers.add(made["to"])
        elif (written := _WRITTEN.match(line)) and not line.startswith(("st", "cmp", "vst")):
            pointers.discard(written["to"])


def _inner(blocks: Sequence[_Block]) -> Iterator[list[int]]:
    """Yield the blocks of each loop that has no other inside."""
    loops = [(head, _body(blocks, head, tail)) for tail, head in _back_edges(blocks)]
    for head, body in loops:
        if not any(other != head and other in body for other, _ in loops):
            yield sorted(body)


def _blocks(assembly: str) -> list[_Block]:
    blocks, labels = [_Block([])], {}
    for line in _lines(assembly):
        if label := _LABEL.fullmatch(line):
            labels[label[1]] = len(blocks)
            blocks.append(_Block([]))
        else:
            blocks[-1].code.append(line)
            if _BRANCH.match(line):
                blocks.append(_Block([]))
    return _linked(blocks, labels)


def _lines(assembly: str) -> Iterator[str]:
    """Yield labels and instructions; directives are left out."""
    for text in assembly.splitlines():
        line = _COMMENT.sub("", text).strip()
        if line and (not line.startswith(".") or _LABEL.fullmatch(line)):
            yield line


def _linked(blocks: list[_Block], labels: dict[str, int]) -> list[_Block]:
    for number, block in enumerate(blocks):
        last = block.code[-1] if block.code else ""
        branch = _BRANCH.match(last)
        following = [labels[branch["to"]]] if branch and branch["to"] in labels else []
        if not _END.match(last) or (branch and branch["word"] != "b"):
            following.append(number + 1)
        block.next = tuple(one for one in following if one < len(blocks))
    return blocks


def _back_edges(blocks: Sequence[_Block]) -> list[tuple[int, int]]:
    """Find the edges to a block that led to their own: in code made of nested loops, those that close a loop."""
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    for entry in range(len(blocks)):
        path, stack = {entry}, [] if entry in seen else [(entry, iter(blocks[entry].next))]
        seen.add(entry)
        while stack:
            number, following = stack[-1]
            after = next(following, None)
            if after is None:
                path.discard(number)
                stack.pop()
            elif after in path:
                found.append((number, after))
            elif after not in seen:
                seen.add(after)
                path.add(after)
                stack.append((after, iter(blocks[after].next)))
    return found


def _body(blocks: Sequence[_Block], head: int, tail: int) -> set[int]:
    """Return the blocks of a loop: those from which its end is reached without passing its head."""
    before: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        for after in block.next:
            before.setdefault(after, []).append(number)
    body, waiting = {head, tail}, [tail] if tail != head else []
    while waiting:
        for number in before.get(waiting.pop(), ()):
            if number not in body:
                body.add(number)
                waiting.append(number)
    return body
