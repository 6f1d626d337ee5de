"""The search of `ctc:beam=`, with texts as tuples: written apart from the C++ code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def most_probable(shares: NDArray[Any], width: int, blank: int = 0) -> tuple[list[int], list[int]]:
    """Return the labels of the best text, and the row where each was found first."""
    beams: list[tuple[tuple[int, ...], float, float]] = [((), 1.0, 0.0)]
    texts: dict[tuple[int, ...], int] = {(): -1}
    for row, share in enumerate(shares.astype(float).tolist()):
        previous = {text: (ends, other) for text, ends, other in beams}
        candidates = []
        for text, ends, other in beams:
            again = other * share[text[-1]] if text else 0.0
            if text and text[:-1] in previous:
                shorter = previous[text[:-1]]
                again += (shorter[0] if text[:-1] and text[-2] == text[-1] else sum(shorter)) * share[text[-1]]
            candidates.append((text, (ends + other) * share[blank], again))
        for text, ends, other in beams:
            for label, of_label in enumerate(share):
                if label != blank and (*text, label) not in previous:
                    last = text[-1] if text else -1
                    candidates.append(((*text, label), 0.0, (ends if label == last else ends + other) * of_label))
        best = sorted(
            (candidate for candidate in candidates if candidate[1] + candidate[2] > 0),
            key=lambda candidate: -(candidate[1] + candidate[2]),
        )[:width]
        if best:
            scale = 2.0 ** -float(np.frexp(best[0][1] + best[0][2])[1])
            beams = [(text, ends * scale, other * scale) for text, ends, other in best]
        for text, _, _ in beams:
            texts.setdefault(text, row)
    text = beams[0][0]
    return list(text), [texts[text[: number + 1]] for number in range(len(text))]
