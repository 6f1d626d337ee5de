"""What users write: steps such as `resize:letterbox=640,pad=114`, as options or in pipeline.toml."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import files
from toolchain.errors import InputError, did_you_mean, reason
from toolchain.validation import CONFIG, parse_toml, validate

FILE = "pipeline.toml"
VALUE = ""
"""Key of a step's only value: `scale=1/255`."""
_LABELS = "labels"
_LARGEST_LABELS = 512 << 10  # bytes; the manifest of a bundle has the labels
_LONGEST_LABEL = 200
_LARGEST_NUMBER = 1e6

# the parameters of each step; VALUE for a step that is written NAME=VALUE
PRE = {
    "resize": ("stretch", "letterbox", "crop", "by", "pad", "short"),
    "color": (VALUE,),
    "scale": (VALUE,),
    "mean": (VALUE,),
    "std": (VALUE,),
    "layout": (VALUE,),
    "dtype": (VALUE,),
}
POST = {
    "softmax": (),
    "topk": (VALUE, "k", _LABELS, "output"),
    "yolo": ("head", "nms", "score", "max", _LABELS, "output"),
}


@dataclass(frozen=True)
class Step:
    """One step; each error names its text."""

    text: str
    name: str
    values: Mapping[str, str]

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        """Return a value that is one of some words."""
        value = self.values.get(key, default)
        if value not in choices:
            close = did_you_mean(value, choices)
            raise self.fault(f"{key or self.name} is one of {', '.join(choices)}, not {value!r}", close)
        return value

    def number(self, key: str, default: str | None = None, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number, also a fraction such as 1/255, within limits."""
        text = self.values.get(key, default)
        number = _number(text) if text is not None else None
        if number is None or not low <= number <= high:
            raise self.fault(f"{key or self.name} must be a number from {low:g} to {high:g}, not {text!r}")
        return number

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """Return a whole number within limits."""
        number = self.number(key, str(default), low, high)
        if not number.is_integer():
            raise self.fault(f"{key or self.name} must be a whole number, not {self.values[key]}")
        return int(number)

    def numbers(self, *, nonzero: bool) -> tuple[float, float, float]:
        """Return one number for each channel: one for all of them, or three."""
        texts = self.values.get(VALUE, "").split(",")
        numbers = [_number(text) for text in texts]
        values = [number for number in numbers if number is not None and abs(number) <= _LARGEST_NUMBER]
        if len(values) != len(texts) or len(texts) not in {1, 3} or (nonzero and 0 in values):
            expected = "one number other than 0, or three" if nonzero else "one number, or three"
            raise self.fault(f"it needs {expected} with commas between, not {self.values.get(VALUE, '')!r}")
        first, second, third = values if len(values) == 3 else values * 3  # noqa: PLR2004 - of the channels
        return first, second, third

    def fault(self, message: str, hint: str = "") -> InputError:
        return InputError(f"step {self.text!r}: {message}", hint=hint or "docs/pictures.md has all steps")


@dataclass(frozen=True)
class Steps:
    """The steps of a model, and the labels of its classes; empty where there are none."""

    pre: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @classmethod
    def read(cls, pre: Sequence[str], post: Sequence[str], folder: Path) -> Steps | None:
        """Read steps and the file of labels that they name, relative to a folder; None without steps.

        Raises:
            InputError: A step or the file is wrong.
        """
        if not pre and not post:
            return None
        parse(pre, PRE)
        labels: tuple[str, ...] = ()
        texts = []
        for step in parse(post, POST):
            name = step.values.get(_LABELS)
            if name is not None:
                labels = _read_labels(folder / name)
            # Without the path: a bundle has the labels themselves.
            texts.append(
                step.text if name is None else step.text.replace(f"labels={name}", f"labels={Path(name).name}")
            )
        return cls(tuple(text.strip() for text in pre), tuple(texts), labels)

    @property
    def arguments(self) -> list[str]:
        """The same steps for a command line."""
        options = (("--pre", self.pre), ("--post", self.post))
        return [argument for option, texts in options for text in texts for argument in (option, text)]


def parse(texts: Sequence[str], allowed: Mapping[str, Sequence[str]]) -> list[Step]:
    """Parse steps whose names and parameters are allowed; each at most once.

    Raises:
        InputError: A step has another form, or is not allowed.
    """
    steps: list[Step] = []
    for text in texts:
        step = _parse(text.strip(), allowed)
        if any(other.name == step.name for other in steps):
            raise step.fault(f"there are two steps {step.name}", "leave one of them out")
        steps.append(step)
    return steps


def _parse(text: str, allowed: Mapping[str, Sequence[str]]) -> Step:
    match = re.fullmatch(r"([a-z0-9]+)(?:(:)(.+)|=(.+))?", text)
    if not match:
        raise InputError(
            f"step {text!r} is not of the form NAME, NAME=VALUE or NAME:KEY=VALUE,KEY=VALUE",
            hint="for example: resize:letterbox=640,pad=114",
        )
    name, colon, table, value = match.groups()
    if name not in allowed:
        close = did_you_mean(name, allowed) or f"the steps are {', '.join(allowed)}"
        raise InputError(f"there is no step {name!r}", details=text, hint=close)
    values = dict(_pair(item, text) for item in table.split(",")) if colon else {VALUE: value} if value else {}
    step = Step(text, name, values)
    if colon and len(values) < len(table.split(",")):
        raise step.fault("a parameter is there twice", "leave one of them out")
    for key in values:
        if key not in allowed[name]:
            keys = [key for key in allowed[name] if key]
            close = did_you_mean(key, keys) or f"its parameters: {', '.join(keys) or 'none'}"
            raise step.fault(f"it has no parameter {key!r}" if key else "it takes no single value", close)
    return step


def _pair(item: str, text: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not (key.strip() and equals and value.strip()):
        raise InputError(f"step {text!r}: {item!r} is not of the form KEY=VALUE", hint="for example: pad=114")
    return key.strip(), value.strip()


def _number(text: str) -> float | None:
    above, slash, below = text.strip().partition("/")
    try:
        number = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) else None


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        lines = files.read_limited(path, _LARGEST_LABELS).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(
            f"cannot read the labels {path}", details=reason(fault), hint="write one label on each line"
        ) from fault
    for number, line in enumerate(lines, start=1):
        if not line.strip() or not line.isprintable() or len(line) > _LONGEST_LABEL:
            raise InputError(
                f"line {number} of {path.name} is not a label",
                details=repr(line[:_LONGEST_LABEL]),
                hint=f"a label is one line of at most {_LONGEST_LABEL} printable characters",
            )
    return tuple(lines)


@checked_dataclass(frozen=True, config=CONFIG)
class _File:
    """A file pipeline.toml."""

    pre: tuple[str, ...]
    post: tuple[str, ...] = ()


def beside(source: str) -> Path | None:
    """Return the pipeline.toml in the folder of a model file; None if there is none, or no such model file."""
    path = Path(source)
    file = path.parent / FILE
    return file if path.is_file() and file.is_file() else None


def read_file(path: Path) -> Steps | None:
    """Read a pipeline.toml.

    Raises:
        InputError: It is wrong.
    """
    try:
        table = parse_toml(path)
    except OSError as fault:
        raise InputError(f"cannot read {path}", details=reason(fault), hint="check the file") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise InputError(
            f"{path} is not a TOML file", details=str(fault), hint='write: pre = ["scale=1/255"]'
        ) from fault
    contents, wrong = validate(_File, table, "pipeline")
    if wrong:
        raise InputError(
            f"{path} is not valid", details="\n".join(map(str, wrong)), hint="docs/pictures.md describes this file"
        )
    return Steps.read(contents.pre, contents.post, path.parent)
