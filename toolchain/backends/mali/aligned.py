"""Aligned vector accesses in the OpenCL C that TVM writes.

TVM writes `vload4(0, p + i)` for every vector, which promises that `p + i` is aligned to one element and no more:
Mesa makes four loads of it. Where `i` is a multiple of the lanes whatever its variables are, the access is written as
one of a whole vector: memory objects begin at a multiple of the largest vector (`CL_DEVICE_MEM_BASE_ADDR_ALIGN` of
OpenCL), and host code refuses a tensor that does not begin with its memory object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import tvm_ffi

from toolchain.backends.mali import dots, limits
from toolchain.backends.mali.gathered import gathered
from toolchain.backends.mali.images import imaged
from toolchain.backends.mali.readonly import read_only
from toolchain.backends.mali.truths import with_shared_truths

_HOOK = "tvm_callback_opencl_postproc"
_KERNEL = re.compile(r"^__kernel [^{;]*\{", re.MULTILINE)
_POINTER = re.compile(r"__global (u?(?:char|short|int|long)|half|float|double)\*(?: restrict)? (\w+)")
_ACCESS = re.compile(r"\bv(load|store)(2|4|8|16)\(")
_SUM = re.compile(r"\s*(\w+) \+ (.*)", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(\d+)[uUlL]*|([A-Za-z_]\w*)|(<<|>>|[-+*/%&(),\[\]]))")
_CASTS = {"int", "uint", "long", "ulong", "short", "ushort"}
_CONVERSIONS = {f"convert_{one}" for one in _CASTS}
_ALL = 1 << 62
"""Zero is a multiple of everything: this stands for that."""


def aligned(source: str) -> str:
    """Return OpenCL C in which vectors are accessed as such where they are provably aligned.

    Args:
        source: OpenCL C as TVM writes it, with any number of kernels.
    """
    starts = [found.start() for found in _KERNEL.finditer(source)]
    ends = [*starts[1:], len(source)]
    kernels = [_kernel(source[first:last]) for first, last in zip(starts, ends, strict=True)]
    return source[: starts[0]] + "".join(kernels) if starts else source


def multiple(expression: str) -> int:
    """Return a number that divides the value of an expression of C over integers, whatever its variables are.

    Only its powers of two may be relied upon: sums of C wrap around at powers of two. It is 1 for what is not
    understood.
    """
    try:
        tokens = _Tokens(expression)
        found = tokens.whole()
        tokens.end()
    except _StrangeError:
        return 1
    return found


@tvm_ffi.register_global_func(_HOOK, override=True)  # type: ignore[untyped-decorator]
def _processed(source: str, target: Any) -> str:  # noqa: ARG001 - TVM passes it
    written = imaged(read_only(aligned(gathered(with_shared_truths(source)))))
    return dots.with_helper(limits.with_helpers(written))


def _kernel(text: str) -> str:
    head = text[: text.index("{")]
    return _rewritten(text, {name: kind for kind, name in _POINTER.findall(head)})


def _rewritten(text: str, pointers: dict[str, str]) -> str:
    parts, done = [], 0
    while found := _ACCESS.search(text, done):
        end = _closing(text, found.end() - 1)
        arguments = [_rewritten(one, pointers) for one in _split(text[found.end() : end])]
        kind, lanes = found[1], int(found[2])
        whole = _whole(arguments, lanes, pointers)
        written = f"{found[0]}{','.join(arguments)})" if whole is None else whole
        parts += [
            text[done : found.start()],
            written if whole is None or kind == "load" else f"{whole} = {arguments[0]}",
        ]
        done = end + 1
    return "".join([*parts, text[done:]])


def _whole(arguments: list[str], lanes: int, pointers: dict[str, str]) -> str | None:
    """Write the access to a whole vector; None if it may not be aligned."""
    place = _SUM.fullmatch(arguments[-1])
    if place is None or place[1] not in pointers or arguments[-2].strip() != "0" or multiple(place[2]) % lanes:
        return None
    return f"(*(__global {pointers[place[1]]}{lanes}*)({place[1]} + {place[2]}))"


def _closing(text: str, start: int) -> int:
    """Return where a parenthesis is closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    raise ValueError(text[start:])


def _split(text: str) -> Iterator[str]:
    """Yield the arguments of a call."""
    depth = first = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            yield text[first:place]
            first = place + 1
    yield text[first:]


def _shared(total: int, divisor: int) -> int:
    """Return what divides a multiple of something that was itself divided by a constant."""
    return total // divisor if divisor and total % divisor == 0 else 1


class _StrangeError(Exception):
    """An expression has something that is not known here."""


class _Tokens:
    """Reads an expression by recursive descent; each method returns a divisor of what it has read."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        place = 0
        text = text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise _StrangeError
            self._tokens.append(found[0].strip())
            place = found.end()
        self._next = 0

    def end(self) -> None:
        """Ask that everything was read."""
        if self._next != len(self._tokens):
            raise _StrangeError

    def whole(self) -> int:
        """Read a sum, a shift, or some bits of either: those bind least of what is known."""
        total = self._plain_sum()
        while self._peek() in {"<<", ">>"}:
            operator = self._take()
            bits = self._literal()
            total = total << bits if operator == "<<" else _shared(total, 1 << bits)
        while self._peek() == "&":  # the lowest bits that are 0 stay so
            self._take()
            self._plain_sum()
            total = math.gcd(total, _ALL)
        return total

    def _plain_sum(self) -> int:
        total = self._product()
        while self._peek() in {"+", "-"}:
            self._take()
            total = math.gcd(total, self._product())
        return total

    def _product(self) -> int:
        total = self._unary()
        while self._peek() in {"*", "/", "%"}:
            operator = self._take()
            if operator == "*":
                total *= self._unary()
            elif operator == "%":
                total = math.gcd(total, self._unary())
            else:
                total = _shared(total, self._literal())
        return total

    def _literal(self) -> int:
        """Read a constant."""
        depth = 0
        while self._peek() == "(":
            self._take()
            depth += 1
        text = self._take().rstrip("uUlL")
        if not text.isdigit():
            raise _StrangeError
        for _ in range(depth):
            self._expect(")")
        return int(text)

    def _unary(self) -> int:
        word = self._take()
        if word == "-":
            return self._unary()
        if word == "(":
            return self._bracket()
        if word[0].isdigit():
            return int(word.rstrip("uUlL")) or _ALL
        if not word.isidentifier():
            raise _StrangeError
        if self._peek() == "[":
            return self._element()
        return self._call(word) if self._peek() == "(" else 1

    def _element(self) -> int:
        """Read an element of an array, of which nothing is known."""
        self._take()
        self.whole()
        self._expect("]")
        return 1

    def _bracket(self) -> int:
        if self._peek() in _CASTS:
            self._take()
            self._expect(")")
            return self._unary()
        inside = self.whole()
        self._expect(")")
        return inside

    def _call(self, name: str) -> int:
        """Read a call: one that only changes the type keeps a divisor, `min` and `max` return one of two."""
        self._take()
        found = [self.whole()]
        while self._peek() == ",":
            self._take()
            found.append(self.whole())
        self._expect(")")
        return math.gcd(*found) if name in {"min", "max", *_CONVERSIONS} else 1

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        if not self._peek():
            raise _StrangeError
        self._next += 1
        return self._tokens[self._next - 1]

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise _StrangeError
