"""Int8 with real scales: a float model is calibrated, converted and compared; layers stay float within a budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from toolchain import files, interrupts
from toolchain.errors import InputError, RegressionError
from toolchain.models import reference
from toolchain.models.source import SourceModel
from toolchain.pipeline import steps
from toolchain.pipeline.evaluate.data import Reader
from toolchain.pipeline.evaluate.paired import CONFIDENCE, Loss
from toolchain.pipeline.evaluate.result import REFERENCE, Side, compare
from toolchain.pipeline.evaluate.scoring import SampleRequest
from toolchain.progress import Progress, Step, stage
from toolchain.quantize import Settings, network
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.float_layers import Budget, Choice, FloatLayer, choose
from toolchain.quantize.real_scales import CALIBRATORS, FloatNetwork, Layer, Quantizer, calibrate, float_network
from toolchain.quantize.samples import Selection
from toolchain.quantize.write import Written
from toolchain.steps import Steps
from toolchain.tensors import Tensors, TensorSpec

_INT8 = "int8"
_USUAL_DB = 30.0  # signal over noise of the outputs below which a warning names the remedy
_FEW = 8  # samples that layers are ordered by
_ENOUGH = 16  # samples of which some can be kept for the figures
_KEPT = 4  # every fourth of them
_LEAST_POWER = 1e-30  # of a signal: outputs may be zeros
_LAST_BITS = 1e-9  # of a sum of scores


@dataclass(frozen=True)
class QuantizeRequest:
    """A model to quantize; at most one of the two limits is set."""

    source: SourceModel
    samples: Sequence[Tensors]
    settings: Settings  # its method is one of `CALIBRATORS`, or empty for the first
    labelled: SampleRequest | None = None  # a metric on samples with labels
    most_lost: float | None = None  # in the unit of the metric
    least_snr_db: float | None = None  # of the outputs
    steps: Steps | None = None  # of the model; None for the usual ImageNet preprocessing of the metric's pictures


@dataclass(frozen=True)
class MetricLoss:
    """What int8 loses of a metric against the float model, with its interval."""

    metric: str
    unit: str
    samples: int
    float_value: float
    int8_value: float
    loss: Loss

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"confidence": CONFIDENCE}


@dataclass(frozen=True)
class BiasCorrection:
    """The noise of the outputs over the signal, in dB, without corrected biases and with them."""

    without_db: float
    with_db: float

    @property
    def is_better(self) -> bool:
        return self.with_db < self.without_db


@dataclass(frozen=True)
class QuantizedModel:
    """A model in QDQ form with real scales, and how near it is to the float model."""

    source: SourceModel
    method: str
    samples: int
    judged: int  # samples that the figures are of: others than those of the ranges, if there are enough
    layers: tuple[Layer, ...]  # those that compute in int8
    kept: tuple[FloatLayer, ...]  # those that stay float for the budget
    excluded: tuple[str, ...]  # those that the user excluded
    noises: Mapping[str, float]  # share of the noise that goes away if one layer is float, where that was measured
    bias_correction: BiasCorrection | None  # None where there is no noise
    output_snr_db: float | None  # signal over noise; None where they are equal
    top1_agreement: float | None  # share of samples with the same best class; None without classes
    metric: MetricLoss | None
    limit: str  # what was allowed, as text; empty without a limit
    unit: str  # of the limit, and of what layers give back
    before: float | None  # loss, or signal over noise, with all layers in int8; None without a limit, or without noise
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return all but the model itself, as JSON has it."""
        names = (field.name for field in dataclasses.fields(self) if field.name not in {"source", "noises"})
        own = {name: getattr(self, name) for name in names}
        lists = {
            "layers": [
                {"name": layer.name, "operator": layer.operator, "noise": self.noises.get(layer.name)}
                for layer in self.layers
            ],
            "bias_correction": self.bias_correction
            and dataclasses.asdict(self.bias_correction) | {"kept": self.bias_correction.is_better},
            "kept": [dataclasses.asdict(layer) for layer in self.kept],
            "metric": self.metric and self.metric.document(),
        }
        return own | lists | {"model": self.source.name, "sha256": self.source.sha256}


@dataclass(frozen=True)
class Prepared:
    """A model that can be quantized, with samples and a metric that fit it."""

    request: QuantizeRequest
    floats: FloatNetwork
    scorer: _Scorer | None


def prepare(request: QuantizeRequest, tell: Progress) -> Prepared:
    """Check what can be checked before the work.

    Raises:
        InputError: The model cannot be quantized, or samples, data or metric do not fit it.
    """
    read_all(request.samples, request.source.name, tell)
    tell(stage("simplifying the model"))
    floats = float_network(request.source, request.settings.exclude)
    scorer = _Scorer(request.source, request.labelled, request.steps, tell) if request.labelled else None
    return Prepared(request, floats, scorer)


def quantize(prepared: Prepared, tell: Progress) -> QuantizedModel:
    """Quantize a model.

    Raises:
        InputError: ONNX Runtime cannot compute the model or quantize it, or the metric has no score.
        RegressionError: Only a float model is within the limit.
    """
    request, floats, scorer = prepared.request, prepared.floats, prepared.scorer
    source, settings = request.source, request.settings
    method = settings.method or next(iter(CALIBRATORS))
    samples, others = _split(request)
    tell(f"quantizing {len(floats.layers)} layers of {source.name} with {len(samples)} sample(s)")
    quantizer = Quantizer(floats, calibrate(floats, samples, method, tell))
    comparison = _OutputComparison(floats.proto, others)
    quantizer, correction = _correct_biases(quantizer, comparison, samples, tell)
    choice = _choose(request, quantizer, comparison, scorer, tell)
    names = {layer.name for layer in choice.layers} if choice else set()
    proto = quantizer.quantized(names)
    tell(stage("comparing it with the float model"))
    accuracy = comparison.accuracy(proto)
    digest = files.sha256_bytes(proto.SerializeToString(deterministic=True))
    return QuantizedModel(
        source=dataclasses.replace(source, proto=proto, sha256=digest),
        method=method,
        samples=len(samples),
        judged=len(others),
        layers=tuple(layer for layer in floats.layers if layer.name not in names),
        kept=choice.layers if choice else (),
        excluded=settings.exclude,
        noises=choice.noises if choice else {},
        bias_correction=correction,
        output_snr_db=accuracy.output,
        top1_agreement=accuracy.agreement,
        metric=scorer.result(proto) if scorer else None,
        limit=_limit_text(request, scorer),
        unit="dB" if request.least_snr_db is not None else scorer.metric.unit if scorer else "",
        before=_before(request, choice),
        warnings=_warnings(request, accuracy.output),
    )


def _split(request: QuantizeRequest) -> tuple[Sequence[Tensors], Sequence[Tensors]]:
    """Return the samples for ranges and biases, and those for all figures: the same ones where there are few.

    Ranges fit the samples that they come from, so that figures of the same samples promise too much.
    """
    numbers = range(len(request.samples))
    if len(numbers) < _ENOUGH or request.settings.random:
        return request.samples, request.samples
    kept = numbers[_KEPT - 1 :: _KEPT]
    ranges = [number for number in numbers if number not in kept]
    return Selection(request.samples, ranges), Selection(request.samples, kept)


def _correct_biases(
    quantizer: Quantizer, comparison: _OutputComparison, samples: Sequence[Tensors], tell: Progress
) -> tuple[Quantizer, BiasCorrection | None]:
    """Correct biases if that makes the outputs of the samples better."""
    other = quantizer.corrected(samples, tell)
    noises = [comparison.noise(candidate.quantized()) for candidate in (quantizer, other)]
    if min(noises) <= 0 or not all(map(math.isfinite, noises)):
        return quantizer, None
    correction = BiasCorrection(*(round(10 * math.log10(noise), 2) for noise in noises))
    return other if correction.is_better else quantizer, correction


def _choose(
    request: QuantizeRequest,
    quantizer: Quantizer,
    comparison: _OutputComparison,
    scorer: _Scorer | None,
    tell: Progress,
) -> Choice | None:
    """Choose the layers that stay float; None without a limit."""
    if request.most_lost is not None and scorer:
        budget = Budget(scorer.loss, request.most_lost + _LAST_BITS)
    elif request.least_snr_db is not None:
        budget = Budget(comparison.loss, -request.least_snr_db)
    else:
        return None
    choice = choose(quantizer, comparison.noise, budget, tell)
    if len(choice.layers) == len(quantizer.layers):
        before = _before(request, choice)
        text = f"{before:.4g}{_unit(scorer)} lost" if request.most_lost is not None else f"{before:.1f} dB"
        raise RegressionError(
            f"{request.source.name} is not within {_limit_text(request, scorer)} if any layer is int8",
            details=f"with all layers in int8: {text}",
            hint="allow more, try another --method, or pass more samples with --calibration",
        )
    return choice


def _before(request: QuantizeRequest, choice: Choice | None) -> float | None:
    """Return what the limit is about, with all layers in int8; None without a limit, or where int8 is exact."""
    if choice is None or not math.isfinite(choice.loss_of_all):
        return None
    return choice.loss_of_all if request.most_lost is not None else -choice.loss_of_all


def _unit(scorer: _Scorer | None) -> str:
    return f" {scorer.metric.unit}" if scorer and scorer.metric.unit else ""


def _limit_text(request: QuantizeRequest, scorer: _Scorer | None) -> str:
    if request.most_lost is not None and scorer:
        return f"a loss of {request.most_lost:g}{_unit(scorer)} of {scorer.metric.name}"
    return "" if request.least_snr_db is None else f"{request.least_snr_db:g} dB"


def _warnings(request: QuantizeRequest, snr_db: float | None) -> tuple[str, ...]:
    warnings = [network.sample_warning(request.settings, len(request.samples))]
    is_limited = request.most_lost is not None or request.least_snr_db is not None
    if not is_limited and snr_db is not None and snr_db < _USUAL_DB:
        warnings.append(
            f"the outputs have less than {_USUAL_DB:g} dB: --min-snr {_USUAL_DB:g}, or --budget POINTS with --metric "
            "and --data, keeps the layers float that lose most"
        )
    return tuple(filter(None, warnings))


def read_all(samples: Sequence[Tensors], name: str, tell: Progress) -> None:
    """Read each sample once: a damaged one must not end the work after minutes."""
    if not len(samples):
        raise InputError(f"there are no samples to quantize {name} with")
    for number in range(len(samples)):
        interrupts.check()
        tell(Step("reading samples", number, len(samples), "samples"))
        _ = samples[number]


class _OutputComparison:
    """Compares the outputs of a quantized network with those of the float network, on the samples of the calibration.

    Raises:
        InputError: ONNX Runtime cannot run the float network, or its outputs are not finite.
    """

    def __init__(self, proto: onnx.ModelProto, samples: Sequence[Tensors]) -> None:
        self._proto = proto
        self._samples = samples
        count = min(_FEW, len(samples))
        self._few = [samples[number * len(samples) // count] for number in range(count)]
        self._names = [value.name for value in proto.graph.output]
        probe = Probe(proto, self._names)
        self._exact = [probe.run(sample) for sample in self._few]
        self._power = {name: self._sum_of_squares(name, self._exact) for name in self._names}
        for name, power in self._power.items():
            if not math.isfinite(power):
                raise InputError(
                    f"the output {name!r} of the float model is infinite or not a number for a sample",
                    hint="remove that sample, or check why the model overflows on it",
                )

    @staticmethod
    def _sum_of_squares(name: str, outputs: Sequence[Tensors]) -> float:
        return sum(float(np.square(values[name].astype(np.float64)).sum()) for values in outputs)

    def noise(self, proto: onnx.ModelProto) -> float:
        """Return the power of the noise over that of the signal, for a few samples, summed over the outputs."""
        probe = Probe(proto, self._names, optimized=False)
        outputs = [probe.run(sample) for sample in self._few]
        total = 0.0
        for name, power in self._power.items():
            errors = [
                {name: exact[name].astype(np.float64) - actual[name]}
                for exact, actual in zip(self._exact, outputs, strict=True)
            ]
            total += self._sum_of_squares(name, errors) / max(power, _LEAST_POWER)
        return total

    def accuracy(self, proto: onnx.ModelProto) -> network.Accuracy:
        """Compare all samples."""
        return network.compare(self._proto, Written(proto, {}, ()), (), self._samples)

    def loss(self, proto: onnx.ModelProto) -> float:
        """Return the signal over noise of the outputs in dB, negated."""
        ratio = self.accuracy(proto).output
        return -math.inf if ratio is None else -ratio


class _Scorer:
    """Scores a quantized network on labelled data, against the float model.

    Raises:
        InputError: The data, the labels or the metric do not fit the model.
    """

    def __init__(self, source: SourceModel, labelled: SampleRequest, written: Steps | None, tell: Progress) -> None:
        opened = labelled.open()
        self._source = source
        self._tell = tell
        self._samples = opened.dataset.samples
        self._reader = Reader(opened.dataset, source.inputs, opened.preprocess, steps.of_model(written, source.inputs))
        self._reader.check()
        call = reference.open_model(source)
        first = call(self._reader.inputs(self._samples[0]))
        specs = [TensorSpec(name, first[name].shape, str(first[name].dtype)) for name in source.output_names]
        pipeline = steps.resolve(written, source.inputs, specs) if written else None
        own_reader = opened.preprocess is not None
        self.metric = opened.metric.of_release(pipeline, source.output_names, own_reader=own_reader)
        self.metric.check(self._reader, specs)
        self._call = call

    @cached_property
    def _float(self) -> Side:
        return self._side(REFERENCE, self._call)

    def _side(self, name: str, call: Callable[[Tensors], Tensors]) -> Side:
        scores = []
        for number, sample in enumerate(self._samples):
            interrupts.check()
            self._tell(Step(f"scoring {self.metric.name} ({name})", number, len(self._samples), "samples"))
            outputs = call(self._reader.inputs(sample))
            ordered = {key: outputs[key] for key in self._source.output_names}
            score = self.metric.score(ordered, self._reader.target(sample))
            if not math.isfinite(score.value):
                raise InputError(
                    f"{self.metric.name} of {sample.name} is {score.value} for the {name} model",
                    hint="its outputs contain infinities or NaN",
                )
            scores.append(score)
        return Side(name, self._source.origin, "", tuple(scores))

    def _int8(self, proto: onnx.ModelProto) -> Side:
        return self._side(_INT8, Probe(proto, self._source.output_names, optimized=False).run)

    def loss(self, proto: onnx.ModelProto) -> float:
        """Return what a network loses, in the unit of the metric."""
        return self.metric.sign * (self.metric.total(self._float.scores) - self.metric.total(self._int8(proto).scores))

    def result(self, proto: onnx.ModelProto) -> MetricLoss:
        """Return what a network loses, with its interval."""
        side, metric = self._int8(proto), self.metric
        return MetricLoss(
            metric.name,
            metric.unit,
            len(self._samples),
            metric.total(self._float.scores),
            metric.total(side.scores),
            compare(metric, self._float, side).loss,
        )
