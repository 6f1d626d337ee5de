"""What users write: steps such as `resize:letterbox=640,pad=114`, as options or in pipeline.toml."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import anchors, files
from toolchain.errors import InputError, ToolchainError, did_you_mean, reason
from toolchain.tensors import TensorSpec
from toolchain.validation import CONFIG, parse_toml, validate

FILE = "pipeline.toml"
VALUE = ""
"""Key of a step's only value: `scale=1/255`."""
_LABELS, _ANCHORS = "labels", "anchors"
_LARGEST_LABELS = 512 << 10  # bytes; the manifest of a bundle has the labels
_LONGEST_LABEL = 200
_LARGEST_NUMBER = 1e6
# the limits of runtime/steps/steps.h
_WIDEST_BEAM = 128
_MOST_BEAM_ROWS = 1 << 20


@dataclass(frozen=True)
class Vocabulary:
    """The parameters of each step by its name; VALUE for a step that is written NAME=VALUE."""

    pre: Mapping[str, tuple[str, ...]]
    post: Mapping[str, tuple[str, ...]]
    manual: str


_CLASSES = {"softmax": (), "topk": (VALUE, "k", _LABELS, "output")}
_TEXT = (_LABELS, "blank", "space", "beam", "output")
PICTURES = Vocabulary(
    {
        "resize": ("stretch", "letterbox", "crop", "by", "pad", "short"),
        "color": (VALUE,),
        "scale": (VALUE,),
        "mean": (VALUE,),
        "std": (VALUE,),
        "layout": (VALUE,),
        "dtype": (VALUE,),
    },
    {
        **_CLASSES,
        "yolo": ("head", "anchors", "strides", "by", "nms", "score", "max", "points", "masks", _LABELS, "output"),
        "boxes": (
            *("boxes", "scores", "form", "unit", "by", "background", "nms", "score", "max", _LABELS),
            *(_ANCHORS, "strides", "cells", "scales", "ratios", "each", "variances", "size", "points"),
        ),
        "ctc": _TEXT,
    },
    "docs/pictures.md",
)
_BANDS = ("like", "fft", "win", "hop", "mels", "low", "high", "power", "log", "floor", "offset", "top", "pad")
SOUNDS = Vocabulary(
    {
        "wav": ("rate", "resample"),
        "window": ("samples", "hop", "context"),
        "mel": _BANDS,
        "mfcc": (*_BANDS, "coefficients"),
        "scale": (VALUE,),
        "mean": (VALUE,),
        "std": (VALUE,),
        "normalize": (VALUE,),
        "layout": (VALUE,),
        "dtype": (VALUE,),
    },
    {**_CLASSES, "ctc": _TEXT},
    "docs/sound.md",
)


TEXTS = Vocabulary({}, {"tokens": ("kind", "end", "skip", _LABELS, "output")}, "docs/text.md")


@dataclass(frozen=True)
class LabelRows:
    """An output of rows of scores over time, for the labels of a text."""

    rows: int
    classes: int
    blank: int
    space: int  # the label that stands for a space; -1 for none
    beam: int  # width of the search for the most probable text; 0: the best label of each row


class Reading(Protocol):
    """What a plan says of the labels that are read of an output."""

    @property
    def head(self) -> str: ...

    @property
    def space(self) -> int: ...


@dataclass(frozen=True)
class Step:
    """One step; each error names its text."""

    text: str
    name: str
    values: Mapping[str, str]
    manual: str

    @property
    def names_anchors(self) -> bool:
        """Whether it names a file of anchors, and no convention for making them."""
        return self.name == "boxes" and self.values.get(_ANCHORS, anchors.CONVENTIONS[0]) not in anchors.CONVENTIONS

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

    def value(self, *, nonzero: bool) -> float:
        """Return the only number of a step."""
        number = _number(self.values.get(VALUE, ""))
        if number is None or abs(number) > _LARGEST_NUMBER or (nonzero and not number):
            raise self.fault(
                f"it needs one number{' other than 0' if nonzero else ''}, not {self.values.get(VALUE, '')!r}"
            )
        return number

    def output(
        self, outputs: Sequence[TensorSpec], state: Collection[str] = (), dtypes: Collection[str] = ("float32",)
    ) -> int:
        """Return the number of the output that it reads: the only one beside the state, or that of `output=NAME`."""
        names = [spec.name for spec in outputs]
        others = [name for name in names if name not in state]
        number = names.index(others[0])
        if "output" in self.values or len(others) > 1:
            return self.named("output", outputs, state, dtypes)
        return self._checked(number, outputs, dtypes)

    def named(
        self,
        key: str,
        outputs: Sequence[TensorSpec],
        others: Collection[str] = (),
        dtypes: Collection[str] = ("float32",),
    ) -> int:
        """Return the number of the output that a parameter names; it is none of the others."""
        names = [spec.name for spec in outputs if spec.name not in others]
        name = self.values.get(key, "")
        if name not in names:
            hint = did_you_mean(name, names) or f"write {key}={names[0] if names else 'NAME'}"
            raise self.fault(f"the model's outputs are {', '.join(names) or 'other ones'}", hint)
        return self._checked([spec.name for spec in outputs].index(name), outputs, dtypes)

    def _checked(self, number: int, outputs: Sequence[TensorSpec], dtypes: Collection[str]) -> int:
        if outputs[number].dtype not in dtypes or outputs[number].bound:
            raise self.fault(f"output {outputs[number]} is not {' or '.join(dtypes)} of a fixed size")
        return number

    def most(self, spec: TensorSpec, largest: int) -> int:
        """Return how many classes of an output are wanted, which must be one row of scores."""
        if not spec.shape or spec.elements != max(spec.shape):
            raise self.fault(f"output {spec} is not one row of scores")
        key = "k" if "k" in self.values else VALUE
        return self.whole(key, min(5, spec.elements), 1, min(spec.elements, largest))

    def label_rows(self, spec: TensorSpec, labels: Sequence[str], most: int, *, softmax: bool) -> LabelRows:
        """Return how the text of an output of rows of scores is read; `most` rows are possible."""
        if _LABELS not in self.values:
            raise self.fault("it needs a file with the label of each class", "write ctc:labels=FILE")
        rows = [size for size in spec.shape[:-1] if size != 1]
        if len(spec.shape) < 2 or len(rows) > 1 or spec.elements // spec.shape[-1] > most:  # noqa: PLR2004 - a table
            raise self.fault(
                f"output {spec} is not a table of scores: one row for each time, one column for each class"
            )
        classes = spec.shape[-1]
        space = self.values.get("space", "|")
        if "space" in self.values and space not in labels:
            raise self.fault(f"there is no label {space!r} for the space", "write space=LABEL as it is in the file")
        blank = self.whole("blank", 0, 0, classes - 1)
        count = spec.elements // classes
        beam = 0
        if "beam" in self.values:
            beam = self.whole("beam", 0, 1, min(_WIDEST_BEAM, max(_MOST_BEAM_ROWS // count, 1)))
        elif softmax:
            raise self.fault("the best label of each row needs no softmax", "leave softmax out, or write beam=10")
        return LabelRows(count, classes, blank, labels.index(space) if space in labels else -1, beam)

    def fault(self, message: str, hint: str = "") -> InputError:
        return InputError(f"step {self.text!r}: {message}", hint=hint or f"{self.manual} has all steps")


@dataclass(frozen=True)
class Steps:
    """The steps of a model, and the labels of its classes and its file of anchors; empty where there are none."""

    pre: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    anchors: str = ""  # those of a file, by `anchors.read`

    @classmethod
    def read(cls, pre: Sequence[str], post: Sequence[str], folder: Path) -> Steps | None:
        """Read steps and the files of labels and anchors that they name, relative to a folder; None without steps.

        Raises:
            InputError: A step or a file is wrong.
        """
        if not pre and not post:
            return None
        steps = cls(tuple(text.strip() for text in pre), tuple(text.strip() for text in post))
        _ = steps.before
        labels: tuple[str, ...] = ()
        table, texts = "", []
        for step in steps.after:
            text, names = step.text, step.values
            if _LABELS in names:
                labels = _read_labels(folder / names[_LABELS])
                text = _without_folder(text, _LABELS, names[_LABELS])
            if step.names_anchors:
                table = anchors.read(folder / names[_ANCHORS])
                text = _without_folder(text, _ANCHORS, names[_ANCHORS])
            texts.append(text)
        return replace(steps, post=tuple(texts), labels=labels, anchors=table)

    @property
    def is_sound(self) -> bool:
        """Whether they are for sounds, and not for pictures."""
        names = {re.split("[:=]", text, maxsplit=1)[0] for text in self.pre}
        return not names.isdisjoint(SOUNDS.pre.keys() - PICTURES.pre.keys())

    @property
    def is_text(self) -> bool:
        """Whether they are for tokens of a text alone."""
        return not self.pre and any(re.split("[:=]", text, maxsplit=1)[0] in TEXTS.post for text in self.post)

    @property
    def vocabulary(self) -> Vocabulary:
        if self.is_text:
            return TEXTS
        return SOUNDS if self.is_sound else PICTURES

    @property
    def before(self) -> list[Step]:
        """The steps before the model.

        Raises:
            InputError: A step has another form, or is not allowed.
        """
        return _parse_all(self.pre, self.vocabulary.pre, self.vocabulary.manual)

    @property
    def after(self) -> list[Step]:
        """The steps after the model.

        Raises:
            InputError: A step has another form, or is not allowed.
        """
        return _parse_all(self.post, self.vocabulary.post, self.vocabulary.manual)

    def text(self, plan: Reading, numbers: Iterable[int]) -> str:
        """Return the text that labels say, by their numbers; empty if none is read."""
        if plan.head != "labels" or not self.labels:
            return ""
        parts = [" " if number == plan.space else self.labels[number] for number in numbers]
        # SentencePiece marks the beginning of a word so.
        return "".join(parts).replace("\u2581", " ").strip(" ")

    def check_labels(self, step: Step, classes: int, spec: TensorSpec) -> None:
        """Refuse labels that are not one for each class of an output.

        Raises:
            InputError: There are more or fewer.
        """
        if self.labels and len(self.labels) != classes:
            raise step.fault(
                f"there are {len(self.labels)} labels, but output {spec} has {classes} classes",
                "write one line for each class",
            )

    @property
    def arguments(self) -> list[str]:
        """The same steps for a command line."""
        options = (("--pre", self.pre), ("--post", self.post))
        return [argument for option, texts in options for text in texts for argument in (option, text)]


@dataclass(frozen=True)
class Pipeline:
    """The steps of a release, as its manifest has them; each kind of input adds a plan, which follows from them."""

    pre: tuple[str, ...]
    post: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def steps(self) -> Steps:
        return Steps(self.pre, self.post, self.labels)


def pipeline_faults(kind: str, pipeline: Pipeline, resolved: Callable[[], Pipeline]) -> list[str]:
    """Return what is wrong with the pipeline of a manifest: its plan must follow from its steps."""
    try:
        expected = resolved()
    except ToolchainError as fault:
        return [f"{kind}: {fault.message}"]
    return [] if expected == pipeline else [f"{kind}: the plan is not that of the steps"]


def check_order(steps: Sequence[Step], stages: Mapping[str, int], order: str) -> None:
    """Refuse a step before the model that belongs before an earlier one.

    Raises:
        InputError: There is one.
    """
    for first, second in itertools.pairwise(steps):
        if stages[first.name] > stages[second.name]:
            raise second.fault(f"it must come before {first.name}", f"the order is: {order}")


def check_element(spec: TensorSpec, dtype: Step | None, elements: Sequence[str], kind: str) -> None:
    """Refuse an input of a type that a kind of input does not become, or of another one than the step says.

    Raises:
        InputError: It is one.
    """
    if spec.dtype not in elements:
        raise InputError(f"the model's input is {spec.dtype}", hint=f"{kind} become {', '.join(elements)}")
    if dtype is not None and dtype.choice(VALUE, elements) != spec.dtype:
        raise dtype.fault(f"the model's input is {spec.dtype}", f"write dtype={spec.dtype}, or leave it out")


def _parse_all(texts: Sequence[str], allowed: Mapping[str, Sequence[str]], manual: str) -> list[Step]:
    """Parse steps whose names and parameters are allowed; each at most once."""
    steps: list[Step] = []
    for text in texts:
        step = _parse(text, allowed, manual)
        if any(other.name == step.name for other in steps):
            raise step.fault(f"there are two steps {step.name}", "leave one of them out")
        steps.append(step)
    return steps


def _parse(text: str, allowed: Mapping[str, Sequence[str]], manual: str) -> Step:
    match = re.fullmatch(r"([a-z0-9]+)(?:(:)(.+)|=(.+))?", text)
    if not match:
        raise InputError(
            f"step {text!r} is not of the form NAME, NAME=VALUE or NAME:KEY=VALUE,KEY=VALUE",
            hint="for example: resize:letterbox=640,pad=114",
        )
    name, colon, table, value = match.groups()
    if name not in allowed:
        # Of steps for sounds or texts alone, none is there if the only one is misspelled.
        close = did_you_mean(name, [*allowed, *SOUNDS.pre, *TEXTS.post])
        raise InputError(
            f"there is no step {name!r}", details=text, hint=close or f"the steps are {', '.join(allowed)}"
        )
    values = dict(_pair(item, text) for item in table.split(",")) if colon else {VALUE: value} if value else {}
    step = Step(text, name, values, manual)
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


def _without_folder(text: str, key: str, path: str) -> str:
    """Return a step that names a file alone: a bundle has its contents."""
    return text.replace(f"{key}={path}", f"{key}={Path(path).name}")


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

    pre: tuple[str, ...] = ()
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
            f"{path} is not valid",
            details="\n".join(map(str, wrong)),
            hint="docs/pictures.md and docs/sound.md describe this file",
        )
    return Steps.read(contents.pre, contents.post, path.parent)
