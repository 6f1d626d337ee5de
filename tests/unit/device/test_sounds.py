"""What a device made of a sound, compared with this machine's steps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from toolchain import sounds
from toolchain.device import objects, pictures
from toolchain.device import sounds as device_sounds
from toolchain.errors import OutputError, VerificationError
from toolchain.native.sounds import Computer, Recording, synthetic
from toolchain.native.steps import OBJECT
from toolchain.states import StatePair
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

GIVEN, OUTPUT = TensorSpec("x", (1, 8, 5), "float32"), TensorSpec("y", (1, 6, 3), "float32")
PRE = ("wav:rate=16000", "mel:like=kaldi,win=60,hop=20,mels=5", "normalize")


def manifest(post=("ctc:labels=FILE",), labels=("-", "|", "a"), output=OUTPUT):
    resolved = sounds.resolve(Steps(PRE, post, labels), [GIVEN], [output])
    specs = {"inputs": (GIVEN,), "step_inputs": (GIVEN,), "outputs": (output,), "states": ()}
    return SimpleNamespace(name="m", sounds=resolved, pictures=None, pipeline=resolved, **specs)


def run_of(release, contents, scores):
    """Return what a device sends that computes as this machine does."""
    computer = Computer(release.sounds.plan)
    prepared = computer.prepare(Recording(contents), shape=GIVEN.shape)
    columns = computer.find(scores)
    table = np.stack([columns[name].astype(np.float32) for name in OBJECT.names], axis=1).reshape(-1, 6)
    sent = {"objects": table, "counts": np.array([len(table)]), "input": prepared}
    return SimpleNamespace(objects=sent, outputs={"y": scores})


@pytest.fixture
def matching_run():
    release = manifest()
    contents = synthetic(release.sounds.plan, 0)
    scores = np.zeros((1, 6, 3), np.float32)
    scores[0, range(6), [2, 2, 1, 0, 2, 2]] = 1
    return release, contents, run_of(release, contents, scores)


def test_a_device_that_computes_alike(matching_run):
    release, contents, run = matching_run
    checked = device_sounds.check(run, contents, release)
    assert (checked.bytes, checked.objects, checked.text) == (contents.size, 3, "a a")
    assert "the text 'a a'" in str(checked)
    run.objects["input"] = run.objects["input"] * np.float32(1 + 5e-6)
    device_sounds.check(run, contents, release)


@pytest.mark.parametrize(
    "change", [lambda values: values * np.float32(1.001), lambda values: values * np.float32(np.nan)]
)
def test_another_input_is_refused(matching_run, change):
    release, contents, run = matching_run
    run.objects["input"] = change(run.objects["input"])
    with pytest.raises(OutputError, match="makes another input of a sound"):
        device_sounds.check(run, contents, release)


def test_other_objects_are_refused(matching_run):
    release, contents, run = matching_run
    run.objects["objects"] = run.objects["objects"] + np.float32([0, 0, 1, 0, 0, 0])
    with pytest.raises(OutputError, match="finds other objects"):
        device_sounds.check(run, contents, release)
    run.objects["objects"] = run.objects["objects"] + np.float32([9, 0, 0, 0, 0, 0])
    with pytest.raises(VerificationError, match="objects that the release cannot have"):
        device_sounds.check(run, contents, release)
    del run.objects["input"]
    with pytest.raises(VerificationError, match="sent no input"):
        device_sounds.check(run, contents, release)


def test_the_last_window_of_a_stream():
    """It shows whether the device kept the state: its input, and its objects for the device's own output."""
    specs = [TensorSpec("h", (1, 4), "float32"), TensorSpec("x", (1, 96), "float32")]
    results = [TensorSpec("hn", (1, 4), "float32"), TensorSpec("y", (1, 1), "float32")]
    steps, states = Steps(("wav:rate=16000", "window:context=32"), ("topk=1",)), (StatePair("h", "hn"),)
    resolved = sounds.resolve(steps, specs, results, states)
    release = SimpleNamespace(
        name="m", sounds=resolved, pictures=None, pipeline=resolved, inputs=specs, outputs=results
    )
    release.states, release.step_inputs = states, (specs[1],)
    contents, computer = synthetic(resolved.plan, 0, 5), Computer(resolved.plan)
    assert device_sounds.windows_of(contents, release) == 5
    for window in range(5):
        columns = computer.find(np.float32([window / 10]), window)
    table = np.stack([columns[name].astype(np.float32) for name in OBJECT.names], axis=1)
    sent = {"objects": table, "counts": np.array([5]), "input": computer.prepare(Recording(contents), 4, (1, 96))}
    run = SimpleNamespace(objects=sent, outputs={"y": np.float32([[0.4]])})
    assert device_sounds.check(run, contents, release).objects == 5
    run.outputs["y"] = np.float32([[0.5]])
    with pytest.raises(OutputError, match="finds other objects"):
        device_sounds.check(run, contents, release)
    sent["input"] = computer.prepare(Recording(contents), 3, (1, 96))
    with pytest.raises(OutputError, match="makes another input"):
        device_sounds.check(run, contents, release)


def test_as_many_objects_as_windows():
    output = TensorSpec("y", (1, 3), "float32")
    release = manifest(("topk=2",), (), output)
    table = np.zeros((4, 6), np.float32)
    sent = {"objects": table, "counts": np.array([4])}
    assert len(objects.read_objects(sent, release, 1, windows=2)[0]) == 4
    with pytest.raises(VerificationError, match="objects that the release cannot have"):
        objects.read_objects(sent, release, 1)
    assert objects.most_bytes(release, 3, 2, keep_input=True) > 3 * 4 * OBJECT.itemsize + GIVEN.bytes
    with pytest.raises(VerificationError, match="has no steps for pictures"):
        pictures.check(SimpleNamespace(objects=sent, outputs={}), np.zeros((2, 2, 3), np.uint8), release)
