"""Texts of options that give something a value by its name, such as `--dim width=320`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.models.request import Detection

_LARGEST_SIZE = 2**31 - 1


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Read shapes such as `data:1,3,224,224`; return the sizes by the name of the input."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")  # the last one: names of inputs may contain colons
        try:
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shapes[name] = ()
        if not name or not shapes[name] or not all(0 <= size <= _LARGEST_SIZE for size in shapes[name]):
            raise InputError(f"--shape {text} is not of the form NAME:1,3,224,224")
    return shapes


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    """Read sizes such as `width=320`; return them by the name of the dimension."""
    dims: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")  # the last one: names of dimensions may contain it
        if not (name and equals and size):
            raise InputError(f"--dim {text} is not of the form NAME=SIZE", hint="for example: --dim width=320")
        if not (size.isascii() and size.isdecimal()):
            raise InputError(f"--dim {text}: {size} is not a valid size", hint="use a whole number, 0 or more")
        if dims.setdefault(name, int(size)) != int(size):
            raise InputError(f"--dim {name} has two sizes: {dims[name]} and {size}", hint="leave one of them out")
    return dims


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
