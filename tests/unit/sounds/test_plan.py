"""The steps for sounds: how they are read, and how they are checked against a model."""

from __future__ import annotations

import pytest

from toolchain import sounds
from toolchain.errors import InputError
from toolchain.states import StatePair
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

WAVES = TensorSpec("x", (1, 16000), "float32")
BANDS = TensorSpec("x", (1, 1, 40, 101), "float32")
SCORES = TensorSpec("y", (1, 12), "float32")
TABLE = TensorSpec("y", (1, 50, 4), "float32")
LONG = TensorSpec("y", (1, 1 << 16, 4), "float32")
WAV, MEL = "wav:rate=16000", "mel:like=librosa,fft=512,hop=160,mels=40,log=db"


def resolved(pre, post=(), model_input=WAVES, output=SCORES, folder=None):
    return sounds.resolve(Steps.read(tuple(pre), tuple(post), folder), [model_input], [output])


def test_the_steps_of_a_keyword_model(tmp_path):
    (tmp_path / "words.txt").write_text("".join(f"word {number}\n" for number in range(12)))
    pipeline = resolved(
        [WAV, MEL, "mean=-40", "std=40"], ["softmax", "topk:k=3,labels=words.txt"], BANDS, folder=tmp_path
    )
    plan = pipeline.plan
    assert (plan.rate, plan.samples, plan.hop, plan.frames, plan.layout) == (16000, 16000, 0, 101, "bands")
    assert (plan.convention, plan.fft, plan.win, plan.step, plan.mels) == ("librosa", 512, 512, 160, 40)
    assert (plan.padding, plan.logarithm, plan.top, plan.low, plan.high) == ("zeros", "db", 80, 0, 8000)
    assert [(item.kind, item.value) for item in plan.operations] == [("mean", -40), ("std", 40)]
    assert (plan.head, plan.softmax, plan.most, plan.classes, plan.output) == ("classes", True, 3, 12, 0)
    assert sounds.faults(pipeline, [BANDS], [SCORES]) == []
    assert sounds.faults(pipeline, [WAVES], [SCORES]) != []


def test_the_numbers_of_kaldi_and_torchaudio():
    plan = resolved([WAV, "mfcc:like=kaldi"], model_input=TensorSpec("x", (98, 13), "float32")).plan
    assert (plan.fft, plan.win, plan.step, plan.mels, plan.coefficients, plan.samples) == (512, 400, 160, 23, 13, 15920)
    assert (plan.logarithm, plan.low, plan.padding, plan.layout) == ("ln", 20, "none", "frames")
    plan = resolved([WAV, "mfcc:like=torchaudio"], model_input=TensorSpec("x", (1, 40, 81), "float32")).plan
    assert (plan.fft, plan.step, plan.mels, plan.padding, plan.top) == (400, 200, 128, "reflect", 80)


def test_the_labels_of_a_text(tmp_path):
    (tmp_path / "tokens.txt").write_text("<blank>\n|\na\n\u2581b\n")
    pipeline = resolved([WAV], ["ctc:labels=tokens.txt"], output=TABLE, folder=tmp_path)
    assert (pipeline.plan.head, pipeline.plan.candidates, pipeline.plan.classes, pipeline.plan.space) == (
        "labels",
        50,
        4,
        1,
    )
    assert pipeline.text([1, 2, 2, 1, 2, 3, 1]) == "aa a b"


def test_a_text_that_is_as_long_as_it_sounds():
    assert resolved([WAV, "window:hop=8000"]).plan.hop == 8000
    whisper = "mel:fft=400,hop=160,mels=80,pad=reflect,log=db"
    plan = resolved([WAV, "window:samples=480000", whisper], model_input=TensorSpec("x", (1, 80, 3000), "float32")).plan
    assert (plan.samples, plan.frames) == (480000, 3000)


VAD = [TensorSpec("state", (2, 1, 128), "float32"), TensorSpec("input", (1, 576), "float32")]
SCORE = [TensorSpec("stateN", (2, 1, 128), "float32"), TensorSpec("output", (1, 1), "float32")]
STATES = [StatePair("state", "stateN")]


def test_a_stream_of_a_model_with_a_state():
    """Its windows follow each other, and what is read is the output that is not its state."""
    pipeline = sounds.resolve(Steps((WAV, "window:context=64"), ("topk=1",)), VAD, SCORE, STATES)
    plan = pipeline.plan
    assert (plan.samples, plan.context, plan.hop, plan.output, plan.most) == (576, 64, 512, 1, 1)
    assert sounds.faults(pipeline, VAD, SCORE, STATES) == []
    assert sounds.faults(pipeline, VAD, SCORE) != []
    assert sounds.resolve(Steps((WAV,), ()), VAD, SCORE, STATES).plan.hop == 576
    with pytest.raises(InputError, match="the model's outputs are output") as caught:
        sounds.resolve(Steps((WAV,), ("topk:k=1,output=stateN",)), VAD, SCORE, STATES)
    assert "output=output" in caught.value.hint
    with pytest.raises(InputError, match="one sound as their only input beside a state"):
        sounds.resolve(Steps((WAV,), ()), VAD, SCORE, [])
    table = [SCORE[0], TensorSpec("output", (1, 5, 4), "float32")]
    with pytest.raises(InputError, match="text of one window"):
        sounds.resolve(Steps((WAV,), ("ctc:labels=x",), ("-", "a", "b", "c")), VAD, table, STATES)


def test_the_width_of_a_beam(tmp_path):
    (tmp_path / "tokens.txt").write_text("<blank>\n|\na\nb\n")
    pipeline = resolved([WAV], ["softmax", "ctc:labels=tokens.txt,beam=10"], output=TABLE, folder=tmp_path)
    assert (pipeline.plan.beam, pipeline.plan.softmax, pipeline.plan.most) == (10, True, 50)
    assert resolved([WAV], ["ctc:labels=tokens.txt,beam=1"], output=TABLE, folder=tmp_path).plan.beam == 1


def spec(*shape, dtype="float32"):
    return TensorSpec("x", shape, dtype)


# steps before and after, the model's input and output, and what the one error says, with its hint
WRONG = [
    ([MEL], [], BANDS, SCORES, "begin with wav", "wav:rate=16000"),
    (["wave:rate=16000"], [], WAVES, SCORES, "no step 'wave'", "did you mean wav"),
    (["wav"], [], WAVES, SCORES, "needs the sample rate", "wav:rate=16000"),
    (["wav:rat=16000"], [], WAVES, SCORES, "no parameter 'rat'", "did you mean rate"),
    (["wav:rate=0"], [], WAVES, SCORES, "rate must be a number from 1", "docs/sound.md"),
    (["wav:rate=1e9"], [], WAVES, SCORES, "rate must be a number from 1", "docs/sound.md"),
    (["wav:rate=16000,resample=torchaudo"], [], WAVES, SCORES, "resample is one of", "did you mean torchaudio"),
    ([WAV, "mell:fft=512"], [], BANDS, SCORES, "no step 'mell'", "did you mean mel"),
    ([WAV, "mel:like=librossa"], [], BANDS, SCORES, "like is one of", "did you mean librosa"),
    ([WAV, "mel:melz=40"], [], BANDS, SCORES, "no parameter 'melz'", "did you mean mels"),
    ([WAV, "mel:log=lg10"], [], BANDS, SCORES, "log is one of", "did you mean log10"),
    ([WAV, "mel:fft=509"], [], BANDS, SCORES, "product of 2, 3, 5 and 7", "docs/sound.md"),
    ([WAV, "mel:fft=512,win=600"], [], BANDS, SCORES, "win must be a number from 2 to 512", "docs/sound.md"),
    ([WAV, "mel:low=9000"], [], BANDS, SCORES, "low must be a number from 0 to 8000", "docs/sound.md"),
    ([WAV, "mel:low=800,high=700"], [], BANDS, SCORES, "low is 800 Hz", "below high"),
    ([WAV, "mel:top=80"], [], BANDS, SCORES, "top is for log=db", "leave top out"),
    ([WAV, "mel:floor=1e-6"], [], BANDS, SCORES, "floor is for a logarithm", "log=ln"),
    ([WAV, "mel:like=kaldi,pad=zeros"], [], BANDS, SCORES, "frames lie within", "leave pad out"),
    ([WAV, "mfcc:mels=10,coefficients=11"], [], BANDS, SCORES, "coefficients must be a number", "docs/sound.md"),
    ([WAV, MEL, "mfcc"], [], BANDS, SCORES, "cannot follow mel", "leave mel out"),
    ([MEL, WAV], [], BANDS, SCORES, "it must come before mel", "the order is: wav"),
    ([WAV, "scale=2", MEL], [], BANDS, SCORES, "it must come before scale", "the order is: wav"),
    ([WAV, "normalize=band"], [], WAVES, SCORES, "normalize is one of", "did you mean bands"),
    ([WAV, "scale=0"], [], WAVES, SCORES, "one number other than 0", "docs/sound.md"),
    ([WAV, "scale=1,2"], [], WAVES, SCORES, "it needs one number", "docs/sound.md"),
    ([WAV, MEL], [], WAVES, SCORES, "is not frames of 40 bands", "mel"),
    ([WAV], [], BANDS, SCORES, "is not one row of samples", "add the step mel"),
    ([WAV, MEL, "layout=frames"], [], BANDS, SCORES, "with 40 bands elsewhere", "docs/sound.md"),
    ([WAV, MEL], [], spec(1, 40, 40), SCORES, "frames or bands first", "layout=frames"),
    ([WAV, "window:samples=1000", MEL], [], BANDS, SCORES, "has 101 frames, and 1000 samples give 7", "samples=16000"),
    ([WAV, "window:samples=100"], [], WAVES, SCORES, "has 16000 frames", "samples=16000"),
    ([WAV, "window:hop=0"], [], WAVES, SCORES, "hop must be a number from 1", "docs/sound.md"),
    ([WAV, "dtype=int8"], [], WAVES, SCORES, "input is float32", "dtype=float32"),
    ([WAV], [], spec(1, 16000, dtype="int64"), SCORES, "input is int64", "float32"),
    ([WAV], [], spec(1, 1 << 23), SCORES, "is too long", "shorter"),
    ([WAV, "resize:stretch=8"], [], WAVES, SCORES, "no step 'resize'", "the steps are wav"),
    ([WAV], ["ctc:labels=none.txt"], WAVES, TABLE, "cannot read the labels", "one label on each line"),
    ([WAV], ["ctc"], WAVES, TABLE, "needs a file with the label", "ctc:labels=FILE"),
    ([WAV], ["ctc:labels=two.txt"], WAVES, TABLE, "there are 2 labels", "one line for each class"),
    ([WAV], ["ctc:labels=four.txt,blank=4"], WAVES, TABLE, "blank must be a number from 0 to 3", "docs/sound.md"),
    ([WAV], ["ctc:labels=four.txt,space=_"], WAVES, TABLE, "no label '_' for the space", "space=LABEL"),
    ([WAV], ["ctc:labels=four.txt"], WAVES, TensorSpec("y", (2, 2, 4), "float32"), "table of scores", "docs/sound.md"),
    ([WAV, "window:hop=9"], ["ctc:labels=four.txt"], WAVES, TABLE, "text of one window", "leave hop"),
    ([WAV], ["cts:labels=four.txt"], WAVES, TABLE, "no step 'cts'", "did you mean ctc"),
    ([WAV], ["softmax", "ctc:labels=four.txt"], WAVES, TABLE, "needs no softmax", "write beam=10"),
    ([WAV], ["ctc:labels=four.txt,beam=0"], WAVES, TABLE, "beam must be a number from 1 to 128", "docs/sound.md"),
    ([WAV], ["ctc:labels=four.txt,beam=129"], WAVES, TABLE, "beam must be a number from 1 to 128", "docs/sound.md"),
    ([WAV], ["ctc:labels=four.txt,beam=2.5"], WAVES, TABLE, "beam must be a whole number", "docs/sound.md"),
    ([WAV], ["ctc:labels=four.txt,beam=17"], WAVES, LONG, "beam must be a number from 1 to 16", "docs/sound.md"),
    ([WAV], ["ctc:labels=four.txt,beem=5"], WAVES, TABLE, "no parameter 'beem'", "did you mean beam"),
    ([WAV], ["ctc:labels=two.txt,beam=5"], WAVES, TABLE, "there are 2 labels", "one line for each class"),
    ([WAV], ["ctc:beam=5"], WAVES, TABLE, "needs a file with the label", "ctc:labels=FILE"),
    ([WAV], ["ctc:labels=four.txt,beam=5"], WAVES, SCORES, "there are 4 labels, but .* has 12", "one line for each"),
    ([WAV, "window:context=16000"], [], WAVES, SCORES, "context must be a number from 0 to 15999", "docs/sound.md"),
    ([WAV, "window:context=-1"], [], WAVES, SCORES, "context must be a number from 0", "docs/sound.md"),
    ([WAV, "window:contxt=64"], [], WAVES, SCORES, "no parameter 'contxt'", "did you mean context"),
    ([WAV, "window:context=64"], ["ctc:labels=four.txt"], WAVES, TABLE, "text of one window", "leave hop"),
    ([WAV], ["topk=5"], WAVES, TABLE, "not one row of scores", "docs/sound.md"),
    ([WAV], ["topk=500"], WAVES, SCORES, "topk must be a number from 1 to 12", "docs/sound.md"),
]  # fmt: skip


@pytest.mark.parametrize(("pre", "post", "model_input", "output", "message", "hint"), WRONG)
def test_a_wrong_step_has_one_clear_error(pre, post, model_input, output, message, hint, tmp_path):
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "four.txt").write_text("-\na\nb\nc\n")
    with pytest.raises(InputError, match=message) as caught:
        resolved(pre, post, model_input, output, tmp_path)
    assert hint in caught.value.hint
