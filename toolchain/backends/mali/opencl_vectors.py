"""Vectors in the OpenCL C that TVM writes: accesses in one piece, conditions that all lanes share, gathered bytes."""

from __future__ import annotations

import math
import re

from toolchain.errors import BuildError

# --- aligned accesses ------------------------------------------------------------------------------------------------

# TVM writes `vload4(0, p + i)` for every vector, which only promises that `p + i` is aligned to one element: Mesa
# makes four loads of it. Where `i` is a multiple of the lanes whatever its variables are, the access is written as one
# of a whole vector: memory objects begin at a multiple of the largest vector (`CL_DEVICE_MEM_BASE_ADDR_ALIGN` of
# OpenCL), and host code refuses a tensor that does not begin with its memory object.

_KERNEL = re.compile(r"^__kernel [^{;]*\{", re.MULTILINE)
_POINTER = re.compile(r"__global (u?(?:char|short|int|long)|half|float|double)\*(?: restrict)? (\w+)")
_ACCESS = re.compile(r"\bv(load|store)(2|4|8|16)\(")
_SUM = re.compile(r"\s*(\w+) \+ (.*)", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(\d+)[uUlL]*|([A-Za-z_]\w*)|(<<|>>|[-+*/%&(),\[\]]))")
_CASTS = {"int", "uint", "long", "ulong", "short", "ushort"}
_CONVERSIONS = {f"convert_{name}" for name in _CASTS}
_ALL = 1 << 62
"""Zero is a multiple of everything: this stands for that."""


def align_vectors(source: str) -> str:
    """Return OpenCL C in which vectors are accessed as such where they are provably aligned.

    Args:
        source: OpenCL C as TVM writes it, with any number of kernels.
    """
    starts = [match.start() for match in _KERNEL.finditer(source)]
    if not starts:
        return source
    kernels = [source[first:last] for first, last in zip(starts, [*starts[1:], len(source)], strict=True)]
    heads = [kernel[: kernel.index("{")] for kernel in kernels]
    pointers = [{name: kind for kind, name in _POINTER.findall(head)} for head in heads]
    return source[: starts[0]] + "".join(map(_rewrite, kernels, pointers))


def known_divisor(expression: str) -> int:
    """Return a number that divides the value of an integer expression of C, whatever its variables are.

    Only its powers of two are reliable: sums of C wrap around at powers of two. It is 1 for what is not understood.
    """
    try:
        parser = _DivisorParser(expression)
        divisor = parser.read_expression()
        parser.end()
    except _UnknownSyntaxError:
        return 1
    return divisor


def _rewrite(text: str, pointers: dict[str, str]) -> str:
    """Write the accesses of a kernel, or of an argument within it, as aligned ones where they are."""
    pieces, position = [], 0
    while match := _ACCESS.search(text, position):
        arguments, end = call_arguments(text, match.end())
        arguments = [_rewrite(argument, pointers) for argument in arguments]
        vector = _aligned_vector(arguments, int(match[2]), pointers)
        if vector is None:
            access = f"{match[0]}{','.join(arguments)})"
        else:
            access = vector if match[1] == "load" else f"{vector} = {arguments[0]}"
        pieces += [text[position : match.start()], access]
        position = end + 1
    return "".join([*pieces, text[position:]])


def _aligned_vector(arguments: list[str], lanes: int, pointers: dict[str, str]) -> str | None:
    """Write the access to a whole vector; None if it may not be aligned."""
    address = _SUM.fullmatch(arguments[-1])
    if address is None or address[1] not in pointers or arguments[-2].strip() != "0":
        return None
    pointer, offset = address.groups()
    return None if known_divisor(offset) % lanes else f"(*(__global {pointers[pointer]}{lanes}*)({pointer} + {offset}))"


def _divide(total: int, divisor: int) -> int:
    """Return what divides a multiple of `total` that was itself divided by a constant."""
    return total // divisor if divisor and total % divisor == 0 else 1


class _UnknownSyntaxError(Exception):
    """An expression has syntax that the parser does not know."""


class _DivisorParser:
    """Reads an expression by recursive descent; each method returns a known divisor of what it has read."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _UnknownSyntaxError
            self._tokens.append(match[0].strip())
            position = match.end()
        self._next = 0

    def end(self) -> None:
        """Require that everything was read."""
        if self._next != len(self._tokens):
            raise _UnknownSyntaxError

    def read_expression(self) -> int:
        """Read a sum, a shift, or an and of those: the operators that bind least of the known ones."""
        total = self._read_sum()
        while self._peek() in {"<<", ">>"}:
            operator = self._take()
            bits = self._read_literal()
            total = total << bits if operator == "<<" else _divide(total, 1 << bits)
        while self._peek() == "&":  # an and keeps the lowest bits that are 0
            self._take()
            self._read_sum()
            total = math.gcd(total, _ALL)
        return total

    def _read_sum(self) -> int:
        total = self._read_product()
        while self._peek() in {"+", "-"}:
            self._take()
            total = math.gcd(total, self._read_product())
        return total

    def _read_product(self) -> int:
        total = self._read_unary()
        while self._peek() in {"*", "/", "%"}:
            operator = self._take()
            if operator == "*":
                total *= self._read_unary()
            elif operator == "%":
                total = math.gcd(total, self._read_unary())
            else:
                total = _divide(total, self._read_literal())
        return total

    def _read_literal(self) -> int:
        """Read a constant."""
        depth = 0
        while self._peek() == "(":
            self._take()
            depth += 1
        text = self._take().rstrip("uUlL")
        if not text.isdigit():
            raise _UnknownSyntaxError
        for _ in range(depth):
            self._expect(")")
        return int(text)

    def _read_unary(self) -> int:
        """Read a number, a variable, an element of an array, a call, or an expression in brackets."""
        symbol = self._take()
        if symbol == "-":
            return self._read_unary()
        if symbol == "(":
            if self._peek() in _CASTS:
                self._take()
                self._expect(")")
                return self._read_unary()
            inside = self.read_expression()
            self._expect(")")
            return inside
        if symbol[0].isdigit():
            return int(symbol.rstrip("uUlL")) or _ALL
        if not symbol.isidentifier():
            raise _UnknownSyntaxError
        if self._peek() == "(":
            return self._read_call(symbol)
        if self._peek() == "[":
            self._take()
            self.read_expression()
            self._expect("]")
        return 1  # the value of a variable or of an element may be any

    def _read_call(self, name: str) -> int:
        """Read a call: conversions keep a divisor, and `min` and `max` return one of their arguments."""
        self._take()
        divisors = [self.read_expression()]
        while self._peek() == ",":
            self._take()
            divisors.append(self.read_expression())
        self._expect(")")
        return math.gcd(*divisors) if name in {"min", "max", *_CONVERSIONS} else 1

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        if not self._peek():
            raise _UnknownSyntaxError
        self._next += 1
        return self._tokens[self._next - 1]

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise _UnknownSyntaxError


# --- conditions that all lanes share ---------------------------------------------------------------------------------

# `select` takes what is chosen by the highest bit of each lane's condition. A comparison of vectors has it, as true is
# -1 there. Where all lanes share one condition, TVM repeats the 1 of a scalar, `(uint4)(c, c, c, c)`, which has not:
# `select` would always choose the value for false.

_SELECT = re.compile(r"\bselect\(")
_REPEATED = re.compile(r"\(*(?:convert_[a-z]+\d+)?\(*\(uint\d+\)\(")


def negate_shared_conditions(source: str) -> str:
    """Return OpenCL C in which a condition that all lanes share is -1 for true where `select` reads it.

    Args:
        source: OpenCL C as TVM writes it.
    """
    pieces, position = [], 0
    while match := _SELECT.search(source, position):
        arguments, end = call_arguments(source, match.end())
        # Calls of `select` within a value or a condition are rewritten first.
        *values, condition = map(negate_shared_conditions, arguments)
        condition = condition.strip()
        negated = f" -{condition}" if _is_repeated(condition) else f" {condition}"
        pieces += [source[position : match.end()], ",".join([*values, negated])]
        position = end
    return "".join([*pieces, source[position:]])


def _is_repeated(condition: str) -> bool:
    """Whether a condition is nothing else than one scalar, repeated for all lanes."""
    match = _REPEATED.match(condition)
    return match is not None and not condition[closing_bracket(condition, match.end()) :].strip(") ")


# --- gathered bytes --------------------------------------------------------------------------------------------------

# TVM writes four bytes from four addresses as one integer, shifted and or-ed together, which is what CUDA's `char4` is
# to it. In OpenCL C that is a number and not a vector: a driver refuses the kernel, or puts the number into each lane.

_NAME = re.compile(r"\s*\(*\s*(\w+)\[")


def write_byte_vectors(source: str) -> str:
    """Return OpenCL C in which vectors of gathered bytes are vectors.

    Args:
        source: OpenCL C as TVM writes it, with any number of kernels.

    Raises:
        BuildError: The bytes come from somewhere else than an array whose type the source declares.
    """
    pieces, position = [], 0
    while (start := source.find(_opening(0), position)) >= 0:
        values, end = _lanes(source, start)
        types = {_byte_type(source[:start], value) for value in values}
        if len(types) != 1:
            raise BuildError("bytes of several types are gathered into one vector", details=", ".join(values))
        pieces += [source[position:start], f"(({types.pop()}{len(values)})({', '.join(values)}))"]
        position = end
    return "".join(pieces) + source[position:]


def _opening(lane: int) -> str:
    return f"{'|' if lane else ''}((0x000000ff << {8 * lane}) & ("


def _lanes(source: str, start: int) -> tuple[list[str], int]:
    """Return the values of the lanes of the vector that begins at `start`, and where it ends."""
    values: list[str] = []
    while source.startswith(opening := _opening(len(values)), start):
        first = start + len(opening)
        end = closing_bracket(source, first)
        values.append(source[first:end].removesuffix(f" << {8 * len(values)}"))
        start = end + 2  # the second bracket closes the lane
    return values, start


def _byte_type(before: str, value: str) -> str:
    """Return the type of the array that a byte is read from, as it was last declared."""
    name = _NAME.match(value)
    types = re.findall(rf"\b(u?char)\*?(?: restrict)? {name[1]}\b", before) if name else []
    if not types:
        raise BuildError("bytes are gathered into a vector from something that is not an array", details=value)
    return str(types[-1])


# --- brackets --------------------------------------------------------------------------------------------------------


def closing_bracket(text: str, start: int) -> int:
    """Return where the bracket closes that was opened just before `start`.

    Raises:
        ValueError: It never does.
    """
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise ValueError(text[start:])


def call_arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of a call whose bracket was opened just before `start`, and where that closes."""
    end, depth, first = closing_bracket(text, start), 0, start
    values = []
    for index in range(start, end):
        depth += (text[index] == "(") - (text[index] == ")")
        if text[index] == "," and not depth:
            values.append(text[first:index])
            first = index + 1
    return [*values, text[first:end]], end
