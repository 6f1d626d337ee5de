"""Texts of a network's outputs by the steps of a release."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolchain import texts
from toolchain.errors import InputError
from toolchain.pipeline.evaluate import answers
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

TOKENS = ("the", "cat", "sat")


def text_of(numbers):
    output = TensorSpec("y", (1, numbers.shape[1]), str(numbers.dtype))
    release = texts.resolve(Steps((), ("tokens:kind=wordpiece,labels=FILE",), TOKENS), [output])
    return answers.of_text(release, ["y"])("a.npz", {"y": numbers}, Path("a.npz"))


def test_tokens_are_read():
    assert text_of(np.array([[0, 1, 2]])) == "the cat sat"


@pytest.mark.parametrize("number", [3, -1, 2**40])
def test_a_number_that_is_no_token_is_refused(number):
    """It neither ends the program, nor counts from the end of the vocabulary."""
    with pytest.raises(InputError, match=r"a\.npz: an output has numbers that are not those of tokens") as caught:
        text_of(np.array([[0, number, 1]]))
    assert caught.value.hint == "check the vocabulary"
