"""Options in families: each is gathered into one frozen record, which a command takes as one typed argument.

A field of a record is an option of click's, and its value where it is not given. A record may hold other records; their
options stand in the help where the record stands among the fields.
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
    """Return a field of a record: an option, declared as click does it, but for the name, which is the field's.

    Args:
        names: How it is written, such as `-o` and `--output`.
        settings: What else click takes, and the `subject` of its help.

    Raises:
        TypeError: It is required and has a default, so that click would never miss it.
    """
    if settings.get("required") and "default" in settings:
        raise TypeError(f"{names[-1]} is required, and a default would always stand in for it")
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    return dataclasses.field(default=settings.get("default", absent), metadata={_OPTION: (names, settings)})


def record(family: type) -> Any:
    """Return a field of a record that holds another one, of this class."""
    return dataclasses.field(default_factory=family, metadata={_RECORD: family})


def same(family: type, name: str) -> Any:
    """Return a field for an option that another family has, too."""
    (field,) = (candidate for candidate in dataclasses.fields(family) if candidate.name == name)
    return dataclasses.field(default=field.default, metadata=field.metadata)


def single(family: type, name: str) -> Callable[[Command], Command]:
    """Return the decorator that adds one option of a family to a command, as an argument of its own."""
    return next(decorator for decorator, option_name in _decorators(family) if option_name == name)


def gather(name: str, family: type) -> Callable[[Command], Command]:
    """Return the decorator that adds a family of options to a command.

    Args:
        name: The command's argument that takes the record.
        family: The record's class, a dataclass whose fields are made by `option` and `record`.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(*args: Any, **values: Any) -> Any:
            return command(*args, **{name: _take_record(family, values)}, **values)

        for decorator, _name in reversed(list(_decorators(family))):
            decorator(wrapper)
        return wrapper  # type: ignore[return-value]

    return decorate


def _decorators(family: type) -> Iterator[tuple[Callable[[Any], Any], str]]:
    """Yield click's decorator for each option of a record, with its name, in the order of the fields."""
    for field in dataclasses.fields(family):
        if inner := field.metadata.get(_RECORD):
            yield from _decorators(inner)
        else:
            names, settings = field.metadata[_OPTION]
            yield helptext.option(*names, field.name, **settings), field.name


def _take_record(family: type, arguments: dict[str, Any]) -> Any:
    """Take the values of a record out of those that click read."""
    values = {}
    for field in dataclasses.fields(family):
        inner = field.metadata.get(_RECORD)
        values[field.name] = _take_record(inner, arguments) if inner else arguments.pop(field.name)
    return family(**values)
