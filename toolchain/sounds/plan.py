"""The numbers of a pipeline for sounds: its steps, checked against the inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from toolchain.errors import InputError
from toolchain.states import StatePair, of_step
from toolchain.steps import Pipeline, Step, Steps, check_element, check_order, pipeline_faults
from toolchain.tensors import TensorSpec

Convention = Literal["none", "librosa", "torchaudio", "kaldi"]
Padding = Literal["zeros", "reflect", "none"]
Logarithm = Literal["none", "ln", "log10", "db"]
Layout = Literal["frames", "bands"]
Element = Literal["float32", "float16", "uint8", "int8"]
Head = Literal["none", "classes", "labels"]
Kind = Literal["scale", "mean", "std", "normalize", "normalize-bands"]

# the limits of runtime/sounds/sounds.h
_HIGHEST_RATE = 768_000
_LARGEST_WINDOW = 1 << 22
_LARGEST_FFT = 1 << 14
_MOST_BANDS = 1024
_MOST_FRAMES = 1 << 16
_MOST_OBJECTS = 100
_MOST_ROWS = 1 << 16
_MOST_SCORES = 1 << 24

# of the steps before the model: the samples, their features, the values, and how the model's input stores them
_STAGES = {"wav": 0, "window": 1, "mel": 2, "mfcc": 2, "scale": 3, "mean": 3, "std": 3, "normalize": 3}
_STAGES |= {"layout": 4, "dtype": 4}
_ORDER = "wav; window; mel or mfcc; scale, mean, std, normalize; layout and dtype"


@dataclass(frozen=True)
class Operation:
    """`scale` multiplies by a number, `mean` subtracts it, `std` divides by it; the others use no number."""

    kind: Kind
    value: float


@dataclass(frozen=True)
class Plan:
    """The numbers of a pipeline; the struct of the same name in runtime/sounds/sounds.h describes them."""

    rate: int
    samples: int
    layout: Layout
    dtype: Element
    frames: int
    resample: bool = False
    hop: int = 0
    context: int = 0  # samples of a window that lie before its own time
    convention: Convention = "none"
    fft: int = 0
    win: int = 0
    step: int = 0
    mels: int = 1
    coefficients: int = 0
    padding: Padding = "none"
    power: int = 2
    logarithm: Logarithm = "none"
    low: float = 0.0
    high: float = 0.0
    floor: float = 0.0
    offset: float = 0.0
    top: float = 0.0
    operations: tuple[Operation, ...] = ()
    head: Head = "none"
    softmax: bool = False
    most: int = 0
    classes: int = 0
    candidates: int = 0
    blank: int = 0
    space: int = -1  # the label that stands for a space; -1 for none
    beam: int = 0  # of a text: width of the search for the most probable one; 0: the best label of each row
    output: int = -1  # number of the output that is read; -1 for none

    @property
    def bands(self) -> int:
        return self.coefficients or self.mels


@dataclass(frozen=True)
class Sounds(Pipeline):
    """The pipeline of a release for sounds."""

    plan: Plan

    def text(self, numbers: Iterable[int]) -> str:
        """Return the text of labels; empty if the release reads none."""
        return self.steps.text(self.plan, numbers)


def faults(
    sounds: Sounds, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], states: Sequence[StatePair] = ()
) -> list[str]:
    """Return what is wrong with the pipeline of a manifest."""
    return pipeline_faults("sounds", sounds, lambda: resolve(sounds.steps, inputs, outputs, states))


def resolve(
    steps: Steps,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec] | None,
    states: Sequence[StatePair] = (),
) -> Sounds:
    """Check the steps against a model; without its outputs, only those before it.

    The windows of a sound are the steps of a model with a state.

    Raises:
        InputError: A step is wrong, or does not fit the model.
    """
    plan = _before(steps.before, of_step(inputs, [pair.input for pair in states]), is_stream=bool(states))
    after = steps.after
    if outputs is not None and after:
        plan = _after(plan, after, outputs, [pair.output for pair in states], steps)
    return Sounds(steps.pre, steps.post, steps.labels, plan)


def _before(steps: Sequence[Step], inputs: Sequence[TensorSpec], *, is_stream: bool) -> Plan:
    check_order(steps, _STAGES, _ORDER)
    by_name = {step.name: step for step in steps}
    if "wav" not in by_name:
        raise InputError("steps for sounds begin with wav", hint="for example: --pre wav:rate=16000")
    if "mel" in by_name and "mfcc" in by_name:
        raise by_name["mfcc"].fault("it cannot follow mel", "mfcc computes the bands itself: leave mel out")
    if len(inputs) != 1 or not inputs[0].shape:
        raise InputError(
            "a pipeline is for models with one sound as their only input beside a state",
            details="its inputs: " + ", ".join(map(str, inputs)),
            hint="leave the pipeline out, and pass the inputs with --input FILE.npz",
        )
    spec, wav = inputs[0], by_name["wav"]
    check_element(spec, by_name.get("dtype"), get_args(Element), "sounds")
    dtype: Element = next(name for name in get_args(Element) if name == spec.dtype)
    if "rate" not in wav.values:
        raise wav.fault("it needs the sample rate of the model", "for example: wav:rate=16000")
    rate = wav.whole("rate", 0, 1, _HIGHEST_RATE)
    plan = Plan(rate, 1, "frames", dtype, 1)
    plan = replace(plan, resample="resample" in wav.values and bool(wav.choice("resample", ["torchaudio"])))
    features = by_name.get("mel") or by_name.get("mfcc")
    plan = _features(plan, features) if features else plan
    plan = _shaped(plan, spec, by_name)
    plan = _repeated(plan, by_name.get("window"), is_stream=is_stream)
    return replace(plan, operations=_operations(steps))


def _repeated(plan: Plan, step: Step | None, *, is_stream: bool) -> Plan:
    """Return the plan with where windows begin: without a hop, each follows the one before if there may be several."""
    values = step.values if step else {}
    context = step.whole("context", 0, 0, plan.samples - 1) if step and "context" in values else 0
    hop = plan.samples - context if is_stream or "context" in values else 0
    if step and "hop" in values:
        hop = step.whole("hop", 0, 1, _LARGEST_WINDOW)
    return replace(plan, hop=hop, context=context)


def _features(plan: Plan, step: Step) -> Plan:
    """Return the numbers of a spectrogram, by default those of the library."""
    like = step.choice("like", get_args(Convention)[1:], "librosa")
    plan = replace(plan, convention=next(name for name in get_args(Convention) if name == like))
    return _limited(_banded(_framed(plan, step), step), step)


def _framed(plan: Plan, step: Step) -> Plan:
    """Return the plan with the frames of a spectrogram."""
    is_kaldi = plan.convention == "kaldi"
    if is_kaldi:
        win = step.whole("win", max(plan.rate * 25 // 1000, 2), 2, _LARGEST_FFT)
        fft = step.whole("fft", 1 << (win - 1).bit_length(), 2, _LARGEST_FFT)
        hop, padding = max(plan.rate // 100, 1), "none"
    else:
        fft = step.whole("fft", 2048 if plan.convention == "librosa" else 400, 2, _LARGEST_FFT)
        win = step.whole("win", fft, 2, fft)
        hop, padding = (512, "zeros") if plan.convention == "librosa" else (max(win // 2, 1), "reflect")
    if fft < win or not _has_small_factors(fft):
        raise step.fault(f"fft must be at least {win} and a product of 2, 3, 5 and 7, not {fft}")
    if is_kaldi and step.values.get("pad", "none") != "none":
        raise step.fault("Kaldi's frames lie within the sound", "leave pad out")
    padding = step.choice("pad", get_args(Padding), padding)
    return replace(
        plan,
        fft=fft,
        win=win,
        step=step.whole("hop", hop, 1, _LARGEST_WINDOW),
        padding=next(name for name in get_args(Padding) if name == padding),
        power=step.whole("power", 2, 1, 2),
    )


def _banded(plan: Plan, step: Step) -> Plan:
    """Return the plan with the bands of a spectrogram, and their coefficients."""
    is_kaldi, nyquist = plan.convention == "kaldi", plan.rate // 2
    mels = step.whole("mels", 23 if is_kaldi else 128, 1, _MOST_BANDS)
    usual = {"librosa": 20, "torchaudio": 40, "kaldi": 13}.get(plan.convention, 0)
    low = step.number("low", "20" if is_kaldi else "0", 0.0, nyquist)
    high = step.number("high", str(nyquist), 0.0, nyquist)
    if low >= high:
        raise step.fault(f"low is {low:g} Hz, and high {high:g} Hz", "low must be below high")
    coefficients = step.whole("coefficients", min(usual, mels), 1, mels) if step.name == "mfcc" else 0
    return replace(plan, mels=mels, low=low, high=high, coefficients=coefficients)


def _limited(plan: Plan, step: Step) -> Plan:
    """Return the plan with the logarithm of a spectrogram."""
    is_kaldi, is_mfcc = plan.convention == "kaldi", step.name == "mfcc"
    logarithm = step.choice("log", get_args(Logarithm), "ln" if is_kaldi else "db" if is_mfcc else "none")
    if "top" in step.values and logarithm != "db":
        raise step.fault("top is for log=db", "leave top out")
    for key in ("floor", "offset"):
        if key in step.values and logarithm == "none":
            raise step.fault(f"{key} is for a logarithm", f"leave {key} out, or write log=db, log=ln or log=log10")
    # librosa.power_to_db limits by default, and of torchaudio only MFCC does.
    has_top = logarithm == "db" and (plan.convention == "librosa" or is_mfcc)
    return replace(
        plan,
        logarithm=next(name for name in get_args(Logarithm) if name == logarithm),
        floor=step.number("floor", "1.1920929e-07" if is_kaldi else "1e-10", 1e-30),
        offset=step.number("offset", "0"),
        top=step.number("top", "80" if has_top else "0", 0.0, 1000.0),
    )


def _has_small_factors(number: int) -> bool:
    for factor in (2, 3, 5, 7):
        while number % factor == 0:
            number //= factor
    return number == 1


def _shaped(plan: Plan, spec: TensorSpec, steps: dict[str, Step]) -> Plan:
    """Return the plan with the frames and the layout of the model's input, and the samples of a window."""
    extents = [size for size in spec.shape if size != 1] or [1]
    layouts: dict[Layout, int] = {}
    if plan.convention == "none":
        layouts = {"frames": extents[0]} if len(extents) == 1 else {}
    elif len(extents) == 2:  # noqa: PLR2004 - frames and bands
        layouts |= {"frames": extents[0]} if extents[1] == plan.bands else {}
        layouts |= {"bands": extents[1]} if extents[0] == plan.bands else {}
    elif 1 in (plan.bands, spec.elements // plan.bands) and spec.elements % plan.bands == 0:
        layouts = {"frames": spec.elements // plan.bands}
    if not layouts:
        what = "one row of samples" if plan.convention == "none" else f"frames of {plan.bands} bands"
        raise InputError(
            f"the model's input {spec} is not {what}",
            hint="add the step mel or mfcc, or leave it out" if len(extents) != len(spec.shape) else "check mels",
        )
    if "layout" in steps:
        requested = steps["layout"].choice("", get_args(Layout))
        if requested not in layouts:
            raise steps["layout"].fault(f"the model's input is {spec}, with {plan.bands} bands elsewhere")
        layouts = {name: count for name, count in layouts.items() if name == requested}
    if len(layouts) > 1:
        raise InputError(
            f"the model's input {spec} may have frames or bands first",
            hint="add the step layout=frames or layout=bands",
        )
    (layout, frames), *_ = layouts.items()
    if frames > (_LARGEST_WINDOW if plan.convention == "none" else _MOST_FRAMES):
        raise InputError(f"the model's input {spec} is too long", hint="build it for shorter sounds")
    return _windowed(replace(plan, layout=layout, frames=frames), spec, steps.get("window"))


def _windowed(plan: Plan, spec: TensorSpec, step: Step | None) -> Plan:
    """Return the plan with the samples of a window, which must give the frames of the model's input."""
    if plan.convention == "none":
        natural = plan.frames
    elif plan.padding == "none":
        natural = (plan.frames - 1) * plan.step + (plan.win if plan.convention == "kaldi" else plan.fft)
    else:
        natural = max((plan.frames - 1) * plan.step, 1)
    samples = step.whole("samples", natural, 1, _LARGEST_WINDOW) if step else natural
    if samples > _LARGEST_WINDOW:
        raise InputError(f"the model's input {spec} is too long", hint="build it for shorter sounds")
    plan = replace(plan, samples=samples)
    found = _count_frames(plan)
    # Whisper leaves out the last frame, which is half in the padding.
    if found not in {plan.frames, plan.frames + 1} or (plan.convention == "none" and found != plan.frames):
        fault = f"the model's input {spec} has {plan.frames} frames, and {samples} samples give {found}"
        raise step.fault(fault, f"write samples={natural}") if step else InputError(fault, hint="check hop and pad")
    if plan.padding == "reflect" and samples <= plan.fft // 2:
        raise InputError(f"{samples} samples are too few to mirror {plan.fft // 2}", hint="add pad=zeros to the step")
    return plan


def _count_frames(plan: Plan) -> int:
    if plan.convention == "none":
        return plan.samples
    size = plan.win if plan.convention == "kaldi" else plan.fft
    padded = plan.samples if plan.padding == "none" else plan.samples + plan.fft // 2 * 2
    return 0 if padded < size else 1 + (padded - size) // plan.step


def _operations(steps: Sequence[Step]) -> tuple[Operation, ...]:
    operations = []
    for step in steps:
        if step.name == "normalize":
            of_bands = step.choice("", ("all", "bands"), "all") == "bands"
            operations.append(Operation("normalize-bands" if of_bands else "normalize", 0.0))
        kinds: tuple[Kind, ...] = ("scale", "mean", "std")
        operations += [Operation(kind, step.value(nonzero=kind != "mean")) for kind in kinds if step.name == kind]
    return tuple(operations)


def _after(
    plan: Plan, steps: Sequence[Step], outputs: Sequence[TensorSpec], state: Sequence[str], written: Steps
) -> Plan:
    names = [step.name for step in steps]
    if names not in (["topk"], ["softmax", "topk"], ["ctc"], ["softmax", "ctc"]):
        raise InputError(
            f"the steps after a model cannot be {', '.join(names)}",
            hint="write --post topk=5, --post softmax --post topk=5, or --post ctc:labels=FILE",
        )
    step = steps[-1]
    number = step.output(outputs, state)
    spec = outputs[number]
    if spec.elements > _MOST_SCORES:
        raise step.fault(f"output {spec} is too large")
    plan = replace(plan, output=number)
    if step.name == "ctc":
        plan = _labels(plan, step, spec, written, softmax=len(steps) > 1)
    else:
        most = step.most(spec, _MOST_OBJECTS)
        plan = replace(plan, head="classes", softmax=len(steps) > 1, most=most, classes=spec.elements, candidates=1)
    written.check_labels(step, plan.classes, spec)
    return plan


def _labels(plan: Plan, step: Step, spec: TensorSpec, written: Steps, *, softmax: bool) -> Plan:
    table = step.label_rows(spec, written.labels, _MOST_ROWS, softmax=softmax)
    if plan.hop:
        raise step.fault("it reads the text of one window", "leave hop and context out, and --state")
    return replace(
        plan,
        head="labels",
        softmax=softmax,
        most=table.rows,
        classes=table.classes,
        candidates=table.rows,
        blank=table.blank,
        space=table.space,
        beam=table.beam,
    )
