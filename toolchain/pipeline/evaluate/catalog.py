"""The metrics by name."""

from __future__ import annotations

from pathlib import Path

from toolchain.errors import InputError, did_you_mean, reason
from toolchain.pipeline.evaluate import functions, segments
from toolchain.pipeline.evaluate.data import Dataset
from toolchain.pipeline.evaluate.metrics import Distance, Metric, OwnMetric, TopClasses

NAMES = ("top1", "top5", segments.NAME, "cosine", "mse", "module:function")
_TOP5 = 5


def open_metric(name: str, dataset: Dataset, labels: Path | None) -> Metric:
    """Return the metric of a name.

    Raises:
        InputError: There is no such metric, or the labels cannot be read.
    """
    if labels and name not in {"top1", "top5"}:
        raise InputError(f"--labels has no effect on the metric {name}", hint="leave --labels out")
    if name in {"top1", "top5"}:
        names = _read_labels(labels) if labels else ()
        digest = "\n".join([*dataset.classes, "", *names])
        count = _TOP5 if name == "top5" else 1
        return TopClasses(name, digest, "points", 100.0, count=count, folders=dataset.classes, labels=names)
    if name in {"cosine", "mse"}:
        return Distance(name, sign=-1.0 if name == "mse" else 1.0)
    if name == segments.NAME:
        return segments.open_mean_iou(dataset)
    if ":" in name:
        function = functions.load(name)
        return OwnMetric(name=name, digest=function.digest, function=function)
    hint = did_you_mean(name, NAMES) or f"metrics: {', '.join(NAMES)}"
    raise InputError(f"there is no metric {name!r}", hint=hint)


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"cannot read the labels {path}", details=reason(fault)) from fault
