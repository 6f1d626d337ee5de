"""Numbers of tokens as a text: the vocabulary of a release, and how its tokens are joined."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from toolchain.errors import did_you_mean
from toolchain.states import StatePair
from toolchain.steps import Pipeline, Step, Steps, pipeline_faults
from toolchain.tensors import TensorSpec

Kind = Literal["bpe", "wordpiece", "sentencepiece"]

_LARGEST_VOCABULARY = 960 << 10  # bytes in the manifest, which has at most a MiB
_OVERHEAD = 8  # of a token there: its line
_CONTINUED = "##"
_WORD_MARK = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# GPT-2's letters for bytes: those that can be printed stand for themselves, and the others follow 255 in their order.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTED)]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {chr(256 + index): byte for index, byte in enumerate(_OTHERS)}


@dataclass(frozen=True)
class Plan:
    """How tokens become a text; runtime/model/text_plan.h has the same."""

    kind: Kind
    output: int  # number of the output that has their scores, or their numbers
    end: int = -1  # the token that ends the text; -1 for none
    skip: tuple[int, ...] = ()  # tokens that are not written


@dataclass(frozen=True)
class Texts(Pipeline):
    """The pipeline of a release for texts."""

    plan: Plan

    def text(self, numbers: Iterable[int]) -> str:
        """Return the text of tokens by their numbers, up to the first one that ends it."""
        tokens = []
        for number in numbers:
            if number == self.plan.end:
                break
            if number not in self.plan.skip:
                tokens.append(self.labels[number])
        return join(tokens, self.plan.kind)


def join(tokens: Sequence[str], kind: Kind) -> str:
    """Return the text of tokens. Bytes that are no UTF-8 become U+FFFD, as Python's `errors="replace"` has it."""
    if kind == "wordpiece":
        rest = (token[2:] if token.startswith(_CONTINUED) else f" {token}" for token in tokens[1:])
        return "".join([*tokens[:1], *rest])
    if kind == "bpe":
        parts = [bytes([_BYTES[letter]]) if letter in _BYTES else letter.encode() for letter in "".join(tokens)]
        return b"".join(parts).decode(errors="replace")
    parts = []
    for token in tokens:
        byte = _BYTE.fullmatch(token)
        parts.append(bytes([int(byte[1], 16)]) if byte else token.replace(_WORD_MARK, " ").encode())
    return b"".join(parts).decode(errors="replace").removeprefix(" ")


def faults(texts: Texts, outputs: Sequence[TensorSpec], states: Sequence[StatePair] = ()) -> list[str]:
    """Return what is wrong with the pipeline of a manifest."""
    return pipeline_faults("texts", texts, lambda: resolve(texts.steps, outputs, states))


def resolve(steps: Steps, outputs: Sequence[TensorSpec], states: Sequence[StatePair] = ()) -> Texts:
    """Check the step against the outputs of a model.

    Raises:
        InputError: It is wrong, or does not fit the model.
    """
    (step,) = steps.after
    if not steps.labels:
        raise step.fault("it needs a file with the tokens, one on each line", "write tokens:labels=FILE,kind=bpe")
    size = sum(len(json.dumps(token, ensure_ascii=False).encode()) + _OVERHEAD for token in steps.labels)
    if size > _LARGEST_VOCABULARY:
        raise step.fault(f"its tokens take {size} bytes, and at most {_LARGEST_VOCABULARY} are possible")
    kind = step.choice("kind", get_args(Kind), "bpe")
    number = step.output(outputs, [pair.output for pair in states], ("float32", "int32", "int64"))
    spec = outputs[number]
    if spec.dtype == "float32":
        steps.check_labels(step, spec.shape[-1] if spec.shape else 1, spec)
    names = step.values.get("skip", "").split()
    return Texts(
        steps.pre,
        steps.post,
        steps.labels,
        Plan(
            next(name for name in get_args(Kind) if name == kind),
            number,
            _number_of(step.values["end"], step, steps.labels) if "end" in step.values else -1,
            tuple(_number_of(name, step, steps.labels) for name in names),
        ),
    )


def _number_of(token: str, step: Step, labels: Sequence[str]) -> int:
    if token not in labels:
        raise step.fault(f"there is no token {token!r}", did_you_mean(token, labels) or "write it as the file has it")
    return labels.index(token)
