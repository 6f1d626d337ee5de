"""An evaluation for people and for CI: a page, which a terminal shows in part, and JUnit XML."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image

from toolchain.errors import InconclusiveError
from toolchain.pipeline.evaluate.paired import Verdict
from toolchain.pipeline.evaluate.result import Evaluation, values_text
from toolchain.report import EMULATED, Cell, Facts, Headline, Notes, Page, Part, Picture, Pictures, Section, Table, Tone
from toolchain.report.junit import Case, Suite

_TONES: dict[Verdict, Tone] = {Verdict.SAME: "plain", Verdict.WORSE: "bad", Verdict.BETTER: "good"}
_SHOWN, _LISTED, _THUMBNAILS = 10, 500, 60
_THUMBNAIL = (96, 96)  # pixels


def page(evaluation: Evaluation) -> Page:
    metric, loss = evaluation.metric, evaluation.main.loss
    count = len(evaluation.changes)
    section_title = f"Changed samples: {count} of {len(evaluation.labels)}"
    changed: list[Part] = [_changes(evaluation, _LISTED)] if count > _SHOWN else []
    few: list[Part] = [_changes(evaluation, _SHOWN)] if count else []
    sections = [
        Section("Verdict", [_facts(evaluation)], on_terminal=True),
        Section("Sides", [_sides(evaluation)], on_terminal=True),
        Section("Comparisons", [_comparisons(evaluation)], on_terminal=True),
        Section("Warnings", [Notes(evaluation.warnings())], on_terminal=True),
        Section(f"Largest changes of {metric.name}", few, on_terminal=True),
        Section(section_title, changed),
        Section("Changed pictures", _pictures(evaluation)),
    ]
    title = f"{evaluation.model} on {evaluation.board}: {metric.name} of {len(evaluation.labels)} samples"
    marks = [EMULATED] if evaluation.emulated else []
    tone: Tone = "bad" if evaluation.fault() else _TONES[loss.verdict]
    return Page(title, "evaluate", Headline(evaluation.sentence, tone), sections, marks)


def _facts(evaluation: Evaluation) -> Facts:
    resumed = [f"{side.resumed} of {side.name}" for side in evaluation.sides if side.resumed]
    return Facts(
        [
            ("verdict", str(evaluation.main.verdict)),
            ("model", evaluation.model),
            ("package", f"{evaluation.package}, {evaluation.digest[:16]}"),
            ("board", f"{evaluation.board} at {evaluation.host}{' (emulated)' if evaluation.emulated else ''}"),
            ("data", f"{len(evaluation.labels)} samples of {evaluation.dataset.path}"),
            ("from an interrupted run", ", ".join(resumed)),
        ]
    )


def _sides(evaluation: Evaluation) -> Table:
    metric = evaluation.metric
    rows = [(side.name, side.label, f"{metric.total(side.scores):.5g}") for side in evaluation.sides]
    name = f"{metric.name} in %" if metric.unit else metric.name
    return Table(rows, ("side", "computed by", name), numbers=(2,), name="sides")


def _comparisons(evaluation: Evaluation) -> Table:
    rows = [
        (
            f"{item.second} against {item.first}",
            f"{item.loss.value:.4g}",
            f"{item.loss.low:.4g} to {item.loss.high:.4g}",
            f"{item.loss.p_value:.2g}",
            str(item.loss.worse),
            str(item.loss.better),
            Cell(str(item.verdict), tone=_TONES[item.verdict]),
        )
        for item in evaluation.comparisons
    ]
    lost = f"{evaluation.metric.unit} lost".strip()
    return Table(rows, ("comparison", lost, "99 % interval", "p", "worse", "better", "verdict"), (1, 2, 3, 4, 5))


def _changes(evaluation: Evaluation, most: int) -> Table:
    samples, sides = evaluation.dataset.samples, evaluation.sides
    rows = [
        (samples[change.index].name, evaluation.labels[change.index] or "-", *values_text(sides, change.index))
        for change in evaluation.changes[:most]
    ]
    return Table(rows, ("sample", "label", *(side.name for side in sides)), name="changed samples")


def _pictures(evaluation: Evaluation) -> Sequence[Part]:
    if evaluation.dataset.kind != "pictures":
        return []
    pictures = []
    for change in evaluation.changes[:_THUMBNAILS]:
        sample = evaluation.dataset.samples[change.index]
        reference, *others = values_text(evaluation.sides, change.index)
        with Image.open(sample.path) as image, io.BytesIO() as stream:
            small = image.convert("RGB")
            small.thumbnail(_THUMBNAIL)
            small.save(stream, "PNG")
            pictures.append(Picture(stream.getvalue(), f"{sample.name}: {reference}, now {others[-1]}"))
    return [Pictures(pictures)] if pictures else []


def junit(evaluation: Evaluation) -> bytes:
    """Render the comparison of the device with the reference as a case; it can fail only with a limit for the loss."""
    fault = evaluation.fault()
    details = "\n".join([evaluation.sentence, *evaluation.warnings()])
    case = Case(evaluation.metric.name, output=details)
    if isinstance(fault, InconclusiveError):
        case = Case(case.name, "error", fault.message, "inconclusive", details)
    elif fault:
        case = Case(case.name, "failure", fault.message, "regression", details)
    properties = {
        "verdict": str(evaluation.main.verdict),
        "board": evaluation.board,
        "host": evaluation.host,
        "emulated": str(evaluation.emulated).lower(),
        "package": f"sha256:{evaluation.digest}",
    }
    suite = "toolchain evaluate" + (" (emulated)" if evaluation.emulated else "")
    return Suite(suite, f"{evaluation.board}.{evaluation.model}", [case], properties).xml()
