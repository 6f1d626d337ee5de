"""The first figure of pycocotools for a set of pictures, in its default settings."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def mean_precision(
    images: Sequence[dict[str, Any]],
    truth: Sequence[dict[str, Any]],
    guesses: Sequence[dict[str, Any]],
    kind: str,
    categories: int = 3,
    sigmas: Sequence[float] = (),
) -> float:
    """Return the mean average precision of `bbox`, `segm` or `keypoints`, perhaps with other sigmas.

    Categories are numbered from 1.
    """
    names = [{"id": number, "name": str(number)} for number in range(1, categories + 1)]
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {"images": images, "categories": names, "annotations": truth}
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(guesses), kind)
        if len(sigmas):
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])
