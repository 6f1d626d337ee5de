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
_CONVERSIONS = {f"convert_{name}" for name in _CASTS}
_ALL = 1 << 62
"""Zero is a multiple of everything: this stands for that."""


def aligned(source: str) -> str:
    """Return OpenCL C in which vectors are accessed as such where they are provably aligned.

    Args:
        source: OpenCL C as TVM writes it, with any number of kernels.
    """
    starts = [match.start() for match in _KERNEL.finditer(source)]
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
        divisor = tokens.whole()
        tokens.end()
    except _StrangeError:
        return 1
    return divisor


@tvm_ffi.register_global_func(_HOOK, override=True)  # type: ignore[untyped-decorator]
def _processed(source: str, target: Any) -> str:  # noqa: ARG001 - TVM passes it
    rewritten = imaged(read_only(aligned(gathered(with_shared_truths(source)))))
    return dots.with_helper(limits.with_helpers(rewritten))


def _kernel(text: str) -> str:
    head = text[: text.index("{")]
    return _rewritten(text, {name: kind for kind, name in _POINTER.findall(head)})


def _rewritten(text: str, pointers: dict[str, str]) -> str:
    pieces, position = [], 0
    while match := _ACCESS.search(text, position):
        end = _closing(text, match.end() - 1)
        arguments = [_rewritten(argument, pointers) for argument in _split(text[match.end() : end])]
        kind, lanes = match[1], int(match[2])
        vector = _whole(arguments, lanes, pointers)
        access = f"{match[0]}{','.join(arguments)})" if vector is None else vector
        pieces += [
            text[position : match.start()],
            access if vector is None or kind == "load" else f"{vector} = {arguments[0]}",
        ]
        position = end + 1
    return "".join([*pieces, text[position:]])


def _whole(arguments: list[str], lanes: int, pointers: dict[str, str]) -> str | None:
    """Write the access to a whole vector; None if it may not be aligned."""
    address = _SUM.fullmatch(arguments[-1])
    if address is None or address[1] not in pointers or arguments[-2].strip() != "0" or multiple(address[2]) % lanes:
        return None
    return f"(*(__global {pointers[address[1]]}{lanes}*)({address[1]} + {address[2]}))"


def _closing(text: str, start: int) -> int:
    """Return where a parenthesis is closed."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise ValueError(text[start:])


def _split(text: str) -> Iterator[str]:
    """Yield the arguments of a call."""
    depth = first = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            yield text[first:index]
            first = index + 1
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
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _StrangeError
            self._tokens.append(match[0].strip())
            position = match.end()
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
        token = self._take()
        if token == "-":
            return self._unary()
        if token == "(":
            return self._bracket()
        if token[0].isdigit():
            return int(token.rstrip("uUlL")) or _ALL
        if not token.isidentifier():
            raise _StrangeError
        if self._peek() == "[":
            return self._element()
        return self._call(token) if self._peek() == "(" else 1

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
        divisors = [self.whole()]
        while self._peek() == ",":
            self._take()
            divisors.append(self.whole())
        self._expect(")")
        return math.gcd(*divisors) if name in {"min", "max", *_CONVERSIONS} else 1

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
