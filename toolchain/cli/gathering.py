"""Families of options: click's values are gathered into one frozen record, which a command takes as one typed argument.

A field of a record declares an option of click and its default. A record may contain other records; their options
appear in the help at the position of the record among the fields.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from toolchain.cli import helptext

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTION, _RECORD = "option", "record"


def option(*names: str, **settings: Any) -> Any:
    """Return a field that declares an option, as `click.option` does; its parameter has the name of the field.

    Args:
        names: Its names, such as `-o` and `--output`.
        settings: Other settings of click's, and the `subject` of its help.

    Raises:
        TypeError: It is required and has a default, which would always stand in for it.
    """
    if settings.get("required") and "default" in settings:
        raise TypeError(f"{names[-1]} is required, and a default would always stand in for it")
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    return dataclasses.field(default=settings.get("default", absent), metadata={_OPTION: (names, settings)})


def record(family: type) -> Any:
    """Return a field that contains another record, of this class."""
    return dataclasses.field(default_factory=family, metadata={_RECORD: family})


def same(family: type, name: str) -> Any:
    """Return a field for an option that another family declares."""
    (field,) = (candidate for candidate in dataclasses.fields(family) if candidate.name == name)
    return dataclasses.field(default=field.default, metadata=field.metadata)


def single(family: type, name: str) -> Callable[[Command], Command]:
    """Return the decorator that adds one option of a family to a command, as a separate argument."""
    return next(decorator for decorator, option_name in _decorators(family) if option_name == name)


def gather(name: str, family: type) -> Callable[[Command], Command]:
    """Return the decorator that adds a family of options to a command.

    Args:
        name: The parameter of the command that takes the record.
        family: The record's class, a dataclass whose fields are made by `option` and `record`.

    Raises:
        TypeError: Two fields have one name, by which click would pass both values.
    """
    taken = [option_name for _decorator, option_name in _decorators(family)]
    if twice := {option_name for option_name in taken if taken.count(option_name) > 1}:
        raise TypeError(f"{family.__name__} has more than one field {', '.join(sorted(twice))}")

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(*args: Any, **values: Any) -> Any:
            return command(*args, **{name: _take_record(family, values)}, **values)

        # Decorators apply from the bottom up, and the help lists the last one first.
        for decorator, _name in reversed(list(_decorators(family))):
            decorator(wrapper)
        return wrapper  # type: ignore[return-value]

    return decorate


def _decorators(family: type) -> Iterator[tuple[Callable[[Any], Any], str]]:
    """Yield the decorator and the name of each option of a record, in the order of the fields."""
    for field in dataclasses.fields(family):
        if inner := field.metadata.get(_RECORD):
            yield from _decorators(inner)
        else:
            names, settings = field.metadata[_OPTION]
            yield helptext.option(*names, field.name, **settings), field.name


def _take_record(family: type, arguments: dict[str, Any]) -> Any:
    """Remove the values of a record from click's arguments; return the record."""
    values = {}
    for field in dataclasses.fields(family):
        inner = field.metadata.get(_RECORD)
        values[field.name] = _take_record(inner, arguments) if inner else arguments.pop(field.name)
    return family(**values)
