"""The metrics by name."""

from __future__ import annotations

from pathlib import Path

from toolchain import files
from toolchain.errors import InputError, did_you_mean, reason
from toolchain.pipeline.evaluate import detections, extras, functions, segments, words
from toolchain.pipeline.evaluate.data import Dataset
from toolchain.pipeline.evaluate.detections import MeanPrecision
from toolchain.pipeline.evaluate.metrics import Distance, Metric, OwnMetric, TopClasses
from toolchain.pipeline.evaluate.words import WordErrorRate

NAMES = (
    "top1",
    "top5",
    segments.NAME,
    *detections.NAMES,
    words.NAME,
    "cosine",
    "mse",
    "module:function",
)
_TOP5 = 5
# of metrics that take a postprocessing function
_PACKAGES = {**dict.fromkeys(detections.NAMES, "pycocotools"), words.NAME: "jiwer"}


def open_metric(name: str, dataset: Dataset, labels: Path | None, postprocess: str = "") -> Metric:
    """Return the metric of a name.

    Args:
        name: One of `NAMES`, or module:function.
        dataset: The samples.
        labels: A file of names of classes.
        postprocess: The user's function that makes boxes, masks, key points or a text of outputs, as module:function;
            by default, the steps of the release do (`Metric.of_release`).

    Raises:
        InputError: There is no such metric, it does not fit the data, or a file, package or function that it needs is
            missing.
    """
    if labels and name not in {"top1", "top5"}:
        raise InputError(f"--labels has no effect on the metric {name}", hint="leave --labels out")
    if postprocess and name not in _PACKAGES:
        raise InputError(f"--postprocess has no effect on the metric {name}", hint="leave --postprocess out")
    if dataset.categories and name not in detections.NAMES:
        raise InputError(
            f"{dataset.path} has boxes, which are for the metrics {', '.join(detections.NAMES)}",
            hint="--metric map",
        )
    if name in {"top1", "top5"}:
        names = _read_labels(labels) if labels else ()
        digest = "\n".join([*dataset.classes, "", *names])
        count = _TOP5 if name == "top5" else 1
        return TopClasses(name, digest, "points", 100.0, count=count, folders=dataset.classes, labels=names)
    if name in {"cosine", "mse"}:
        return Distance(name, sign=-1.0 if name == "mse" else 1.0)
    if name == segments.NAME:
        return segments.open_mean_iou(dataset)
    if name in _PACKAGES:
        return _open_with_function(name, dataset, postprocess)
    if ":" in name:
        function = functions.load(name)
        return OwnMetric(name=name, digest=function.digest, function=function)
    hint = did_you_mean(name, NAMES) or f"metrics: {', '.join(NAMES)}"
    raise InputError(f"there is no metric {name!r}", hint=hint)


def _open_with_function(name: str, dataset: Dataset, postprocess: str) -> Metric:
    extras.require(_PACKAGES[name], name)
    function = functions.load(postprocess) if postprocess else None
    digest = f"{function.name}\n{function.digest}" if function else ""
    if name == words.NAME:
        return WordErrorRate(name, digest, "points", 100.0, -1.0, text=function)
    if not dataset.categories:
        raise InputError(f"the metric {name} needs a COCO file, not {dataset.path}", hint="--data FILE.json")
    names = files.sha256_bytes(files.canonical_json(sorted(dataset.categories.items())))
    return MeanPrecision(name, f"{digest}\n{names}", "points", 100.0, categories=dataset.categories, objects=function)


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"cannot read the labels {path}", details=reason(fault)) from fault
