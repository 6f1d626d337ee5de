"""Numbers of tokens as a text: the step, and texts beside an independent encoder of each kind."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain import texts
from toolchain.errors import InputError
from toolchain.states import StatePair
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

SCORES = TensorSpec("y", (1, 7, 6), "float32")
NUMBERS = TensorSpec("ids", (1, 7), "int64")
VOCABULARY = "<s>\n</s>\n<pad>\n\u0120the\nre\n!\n"
SAMPLES = ("Hello, world!", "\u00dcber 3 \u20ac \U0001f600\n\ttab", "\u65e5\u672c\u8a9e \u00a0\u00ad", "a\x00b\x7f\xff")


def resolved(post, outputs=(SCORES,), states=(), folder=None):
    return texts.resolve(Steps.read((), (post,), folder), outputs, states)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocabulary.txt").write_text(VOCABULARY)
    return tmp_path


def letters(data: bytes) -> str:
    """Write bytes in GPT-2's letters, found one by one: what can be printed in Latin-1 stands for itself."""
    unprinted = [byte for byte in range(256) if not (chr(byte).isprintable() and not chr(byte).isspace())]
    return "".join(chr(256 + unprinted.index(byte)) if byte in unprinted else chr(byte) for byte in data)


def cut(text, stream):
    ends = np.flatnonzero(stream.random(len(text)) < 0.5) + 1
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if start < end]


@pytest.mark.parametrize("sample", SAMPLES)
def test_pairs_of_bytes_are_the_text_that_they_were_made_of(sample):
    stream = np.random.default_rng(len(sample))
    for _ in range(20):
        assert texts.join(cut(letters(sample.encode()), stream), "bpe") == sample


def test_bytes_that_are_no_text_are_replaced():
    stream = np.random.default_rng(1)
    for _ in range(200):
        data = stream.integers(0, 256, 12).astype(np.uint8).tobytes()
        assert texts.join(cut(letters(data), stream), "bpe") == data.decode(errors="replace")
    assert texts.join(["\u0120a", "<|\u6f22|>"], "bpe") == " a<|\u6f22|>"  # a letter that is no byte stands for itself


def test_pieces_of_words_are_joined():
    tokens = ["un", "##believ", "##able", ",", "is", "it", "##", "###"]
    assert texts.join(tokens, "wordpiece") == " ".join(tokens).replace(" ##", "")
    assert texts.join(["##a", "b"], "wordpiece") == "##a b"
    assert texts.join([], "wordpiece") == ""


def test_pieces_of_sentences_are_joined():
    tokens = [
        "\u2581Hello",
        "\u2581wor",
        "ld",
        "<0xE2>",
        "<0x82>",
        "<0xac>",
        "\u2581\u2581x",
        "<0x0A>",
        "<0xFF>",
        "<0xG0>",
    ]
    assert texts.join(tokens, "sentencepiece") == "Hello world\u20ac  x\n\ufffd<0xG0>"


def test_the_plan_of_a_vocabulary(folder):
    decoder = resolved("tokens:labels=vocabulary.txt,end=</s>,skip=<s> <pad>", folder=folder)
    assert (decoder.plan.kind, decoder.plan.output, decoder.plan.end, decoder.plan.skip) == ("bpe", 0, 1, (0, 2))
    assert decoder.text([0, 3, 2, 4, 5, 1, 4]) == " there!"
    assert texts.faults(decoder, (SCORES,)) == []
    assert texts.faults(decoder, (NUMBERS,)) == []
    states = (StatePair("h", "hn"),)
    outputs = (TensorSpec("hn", (1, 3), "float32"), NUMBERS)
    assert resolved("tokens:labels=vocabulary.txt", outputs, states, folder).plan.output == 1


@pytest.mark.parametrize(
    ("post", "outputs", "message", "hint"),
    [
        ("tokens", (SCORES,), "needs a file with the tokens", "labels=FILE"),
        ("tokens:labels=none.txt", (SCORES,), "cannot read the labels", "one label"),
        ("tokens:labels=vocabulary.txt,kind=pbe", (SCORES,), "kind is one of bpe", "did you mean bpe"),
        ("tokens:labels=vocabulary.txt,ends=x", (SCORES,), "no parameter 'ends'", "did you mean end"),
        ("tokens:labels=vocabulary.txt,end=</S>", (SCORES,), "no token '</S>'", "did you mean </s>"),
        ("tokens:labels=vocabulary.txt,skip=<s> <unk>", (SCORES,), "no token '<unk>'", ""),
        (
            "tokens:labels=vocabulary.txt",
            (TensorSpec("y", (1, 7, 5), "float32"),),
            "6 labels, but",
            "one line for each",
        ),
        ("tokens:labels=vocabulary.txt", (TensorSpec("y", (1, 7), "bool"),), "not float32 or int32 or int64", ""),
        ("tokens:labels=vocabulary.txt,output=z", (SCORES, NUMBERS), "outputs are y, ids", "output=y"),
        ("tokens:labels=large.txt", (NUMBERS,), "tokens take .* bytes", ""),
        ("tokns:labels=vocabulary.txt", (SCORES,), "no step 'tokns'", "did you mean tokens"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(post, outputs, message, hint, folder):
    (folder / "large.txt").write_text("a\n" * 120_000)
    with pytest.raises(InputError, match=message) as caught:
        resolved(post, outputs, folder=folder)
    assert hint in caught.value.hint
