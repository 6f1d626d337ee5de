"""Texts of options that give something a value by its name, such as `--dim width=320`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.models.request import Detection, Range, VariantShapes

_LARGEST_SIZE = 2**31 - 1
_RANGE_PARTS = 3  # first, last and step
_BETWEEN, _ENDS = "..", 2  # of a dimension with any size


@dataclass(frozen=True)
class Shapes:
    """What `--shape` and `--dim` say.

    Attributes:
        shapes: Shapes of inputs, by name.
        dims: Sizes of dimensions, by name.
        variants: The shapes of each variant beside those; none for one set of shapes.
        range: A dimension of any size, of which the variants are some.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, int]
    variants: tuple[VariantShapes, ...] = ()
    range: Range | None = None


def parse_model_shapes(shape_texts: Sequence[str], dim_texts: Sequence[str]) -> Shapes:
    """Read shapes and sizes, and the variants that they make.

    Raises:
        InputError: A text has another form, or the options cannot be combined.
    """
    from toolchain.models import variants
    from toolchain.models.request import VariantShapes

    shapes, named = _parse_shapes(shape_texts)
    open_ranges = _parse_ranges([text for text in dim_texts if _BETWEEN in text.rpartition("=")[2]])
    sizes = _parse_dims([text for text in dim_texts if _BETWEEN not in text.rpartition("=")[2]])
    dims = {name: values[0] for name, values in sizes.items() if len(values) == 1}
    ranges = {name: values for name, values in sizes.items() if len(values) > 1}
    if open_ranges:
        _check_only(open_ranges, [*ranges, *named])
        (range_,) = open_ranges
        return Shapes(shapes, dims, variants.of_range(range_), range_)
    if not (named or ranges):
        return Shapes(shapes, dims)
    if named and ranges:
        raise InputError(
            f"--dim with several sizes of {', '.join(ranges)} and named shapes cannot be combined",
            hint=f"give each variant its size: --shape {next(iter(named))}=NAME:1,3,224,224",
        )
    if len(named) == 1:
        (name,) = named
        raise InputError(
            f"{name} is the only variant", hint=f"leave `{name}=` out, or name a second one: --shape large=..."
        )
    variants.check_count(len(named))
    of_names = tuple(VariantShapes(name, shapes) for name, shapes in named.items())
    return Shapes(shapes, dims, of_names or variants.of_ranges(ranges))


def _parse_ranges(texts: Sequence[str]) -> list[Range]:
    """Read `length=1..512`: any size between two."""
    from toolchain.models.request import Range

    ranges = []
    for text in texts:
        name, _, sizes = text.rpartition("=")
        ends = sizes.split(_BETWEEN)
        is_range = len(ends) == _ENDS and all(end.isascii() and end.isdecimal() for end in ends)
        if not name or not is_range:
            raise InputError(f"--dim {text} is not a range FIRST..LAST", hint="for example: --dim length=1..512")
        ranges.append(Range(name, *map(int, ends)))
    return ranges


def _check_only(ranges: Sequence[Range], others: Sequence[str]) -> None:
    """Refuse a dimension of any size beside another one, or beside several sizes of others."""
    names = [range_.name for range_ in ranges] + list(others)
    if len(names) > 1:
        raise InputError(
            f"{' and '.join(dict.fromkeys(names))} cannot have several sizes: one dimension may have any size",
            hint=f"set the others to one size, such as --dim {names[1]}=64",
        )


def _parse_shapes(
    texts: Sequence[str],
) -> tuple[dict[str, tuple[int, ...]], dict[str, dict[str, tuple[int, ...]]]]:
    """Read shapes such as `data:1,3,224,224`, and `small=data:1,3,224,224` of a variant.

    Returns:
        The sizes by the name of the input, and the same for each variant.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    named: dict[str, dict[str, tuple[int, ...]]] = {}
    for text in texts:
        variant, equals, rest = text.partition("=")
        group = named.setdefault(variant, {}) if equals else shapes
        name, _, sizes = (rest if equals else text).rpartition(":")  # the last one: names of inputs may contain colons
        try:
            shape = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or not all(0 <= size <= _LARGEST_SIZE for size in shape):
            raise InputError(
                f"--shape {text} is not of the form NAME:1,3,224,224",
                hint="for several variants: --shape small=NAME:1,3,224,224" if equals else "",
            )
        if equals:
            _check_variant(variant, text)
        group[name] = shape
    return shapes, named


def _check_variant(name: str, text: str) -> None:
    from toolchain import variants

    if not variants.NAME.fullmatch(name):
        raise InputError(
            f"--shape {text}: {name!r} cannot be the name of a variant",
            hint="use at most 64 letters, digits, `-` and `_`, such as --shape small=NAME:1,3,224,224",
        )


def _parse_dims(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read sizes such as `width=320`, `width=64:640:32` and `width=320,640`; return them by the dimension's name."""
    dims: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")  # the last one: names of dimensions may contain it
        if not (name and equals and sizes):
            raise InputError(f"--dim {text} is not of the form NAME=SIZE", hint="for example: --dim width=320")
        values = _parse_sizes(sizes, text)
        if dims.setdefault(name, values) != values:
            given = " and ".join(",".join(map(str, each)) for each in (dims[name], values))
            raise InputError(f"--dim {name} has two sizes: {given}", hint="leave one of them out")
    return dims


def _parse_sizes(sizes: str, text: str) -> tuple[int, ...]:
    """Read a size, a list such as `320,640`, or a range with its last value and a step, such as `64:640:32`."""
    parts = sizes.split(":") if ":" in sizes else sizes.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise InputError(f"--dim {text}: {part} is not a valid size", hint="use a whole number, 0 or more")
    numbers = tuple(map(int, parts))
    if ":" not in sizes:
        if len(set(numbers)) < len(numbers):
            raise InputError(f"--dim {text} has a size twice", hint="leave one of them out")
        return numbers
    if len(numbers) != _RANGE_PARTS or numbers[2] == 0 or numbers[1] < numbers[0]:
        raise InputError(
            f"--dim {text} is not a range FIRST:LAST:STEP", hint="for example: --dim width=64:640:32, with both ends"
        )
    from toolchain.models import variants

    first, last, step = numbers
    variants.check_count((last - first) // step + 1)
    return tuple(range(first, last + 1, step))


def parse_states(texts: tuple[str, ...]) -> tuple[dict[str, str], Detection]:
    """Read pairs such as `h=hn`; return the outputs by their inputs, and what happens to other pairs."""
    if texts in {("auto",), ("none",)}:
        return {}, "use" if texts == ("auto",) else "off"
    states: dict[str, str] = {}
    for text in texts:
        if text in {"auto", "none"}:
            raise InputError(f"--state {text} cannot be combined with other pairs", hint="leave one of them out")
        name, equals, output = text.rpartition("=")  # the last one: names of inputs may contain it
        if not (name and equals and output):
            raise InputError(f"--state {text} is not of the form INPUT=OUTPUT", hint="for example: --state h=hn")
        if states.setdefault(name, output) != output:
            raise InputError(
                f"--state {name} has two outputs: {states[name]} and {output}", hint="leave one of them out"
            )
    return states, "propose"


def parse_fixed(texts: tuple[str, ...]) -> dict[str, str]:
    """Read values such as `sr=16000`; return them by the name of the input."""
    fixed = {}
    for text in texts:
        name, equals, value = text.rpartition("=")  # the last one: names of inputs may contain it
        if not (name and equals and value):
            raise InputError(f"--fix {text} is not of the form NAME=VALUE")
        fixed[name] = value
    return fixed
