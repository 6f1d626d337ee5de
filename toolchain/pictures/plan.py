"""The numbers of a pipeline: its steps, checked against the inputs and outputs of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from toolchain import anchors
from toolchain.errors import InputError, did_you_mean
from toolchain.pictures import grids
from toolchain.pictures.anchors import Level, make_levels, of_levels
from toolchain.pictures.grids import Coding, Storage
from toolchain.steps import VALUE, Pipeline, Step, Steps, check_element, check_order, pipeline_faults
from toolchain.tensors import TensorSpec

Order = Literal["rgb", "bgr", "gray"]
Kernel = Literal["none", "nearest", "pillow", "opencv", "torch"]
Fit = Literal["stretch", "letterbox", "crop"]
Layout = Literal["nchw", "nhwc"]
Element = Literal["float32", "float16", "uint8", "int8"]
Head = Literal["none", "classes", "yolo-v5", "yolo-v8", "labels", "detr", "boxes", "grid"]
Form = Literal["center", "corners", "corners-yx", "center-yx"]

LARGEST_SIDE = 4096  # of a model's input; kLargestInput of runtime/pictures/pictures.h
_MOST_OBJECTS = 1000  # kMostObjects there
_MOST_CANDIDATES = 1 << 20  # kMostCandidates there
_MOST_POINTS, _MOST_PROTOTYPES, _LARGEST_PROTOTYPE = 1024, 256, 1024  # those there, too
MOST_EXTRAS = 1 << 20  # key points, or coefficients of masks, of all objects; kMostExtras there
_RANK, _BOXES_RANK = 4, 3
_HEADS = ("v5", "v8", "v11", "rtdetr", *grids.CODINGS)
_SIZE = re.compile(r"(\d{1,5})(?:x(\d{1,5}))?")
_POINTS = re.compile(r"(\d{1,4})(?:x([23]))?")
# of the steps before the model: the pixels of a picture, their values, and how the model's input stores them
_STAGES = {"resize": 0, "color": 0, "scale": 1, "mean": 1, "std": 1, "layout": 2, "dtype": 2}


@dataclass(frozen=True)
class Operation:
    """`scale` multiplies each channel by its number, `mean` subtracts it, `std` divides by it."""

    kind: Literal["scale", "mean", "std"]
    values: tuple[float, float, float]


@dataclass(frozen=True)
class Plan:
    """The numbers of a pipeline; the struct of the same name in runtime/pictures/pictures.h describes them."""

    width: int
    height: int
    order: Order
    layout: Layout
    dtype: Element
    kernel: Kernel = "none"
    fit: Fit = "stretch"
    short_side: int = 0
    pad: int = 0
    operations: tuple[Operation, ...] = ()
    head: Head = "none"
    softmax: bool = False
    most: int = 0
    classes: int = 0
    candidates: int = 0
    nms: float = 0.0
    score: float = 0.0
    output: int = -1  # number of the output that is read; -1 for none
    blank: int = 0  # the class without a label, of a text
    space: int = -1  # the label that stands for a space; -1 for none
    beam: int = 0  # of a text: width of the search for the most probable one; 0: the best label of each row
    points: int = 0  # key points of a box
    point_numbers: int = 0  # of each: x, y, and perhaps its share of being visible
    prototypes: int = 0  # of masks; 0 for none
    mask_width: int = 0
    mask_height: int = 0
    mask_output: int = -1  # number of the output with the prototypes; -1 for none
    form: Form = "center"  # of a box: x, y, width, height; or left, top, right, bottom; -yx: vertical numbers first
    shares: bool = False  # whether places are shares of the model's input, and not its pixels
    sigmoid: bool = False  # whether scores are the sigmoid of the output
    background: int = 0  # number of the class that is no object, counted from 1; 0 for none
    box_output: int = -1  # number of the output with the boxes, where another one has their scores; -1 for none
    coding: Coding = "none"  # how boxes are written: as differences from anchors, or as of the heads of YOLO networks
    storage: Storage = "joined"  # where the numbers of a grid are
    variances: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)  # factors of differences from anchors
    offset: float = 0.0  # of an anchor's middle in its cell, in steps
    levels: tuple[Level, ...] = ()  # whose cells have anchors
    level_outputs: tuple[int, ...] = ()  # numbers of the outputs of the levels of a grid; empty for one output
    table: str = ""  # the anchors of a file, by `anchors.read`

    @property
    def channels(self) -> int:
        return 1 if self.order == "gray" else 3

    @property
    def finds_boxes(self) -> bool:
        return self.head not in {"none", "classes", "labels"}


@dataclass(frozen=True)
class Pictures(Pipeline):
    """The pipeline of a release for pictures."""

    plan: Plan

    @property
    def steps(self) -> Steps:
        return Steps(self.pre, self.post, self.labels, self.plan.table)

    def text(self, numbers: Iterable[int]) -> str:
        """Return the text of labels; empty if the release reads none."""
        return self.steps.text(self.plan, numbers)


def faults(pictures: Pictures, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[str]:
    """Return what is wrong with the pipeline of a manifest."""
    return pipeline_faults("pictures", pictures, lambda: resolve(pictures.steps, inputs, outputs))


def resolve(steps: Steps, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec] | None) -> Pictures:
    """Check the steps against a model; without its outputs, only those before it.

    Raises:
        InputError: A step is wrong, or does not fit the model.
    """
    plan = _before(steps.before, inputs)
    after = steps.after
    if outputs is not None and after:
        plan = _after(plan, after, outputs, steps)
    return Pictures(steps.pre, steps.post, steps.labels, plan)


def _before(steps: Sequence[Step], inputs: Sequence[TensorSpec]) -> Plan:
    if not steps:
        raise InputError("a pipeline needs at least one step before the model", hint="for example: --pre scale=1/255")
    check_order(steps, _STAGES, "resize and color; scale, mean, std; layout and dtype")
    by_name = {step.name: step for step in steps}
    if len(inputs) != 1 or len(inputs[0].shape) != _RANK or inputs[0].shape[0] != 1:
        raise InputError(
            "a pipeline is for models with one picture as their only input",
            details="its inputs: " + ", ".join(map(str, inputs)),
            hint="leave the pipeline out, and pass the inputs with --input FILE.npz",
        )
    plan = _input_of(inputs[0], by_name)
    plan = _resized(plan, by_name["resize"]) if "resize" in by_name else plan
    kinds: tuple[Literal["scale", "mean", "std"], ...] = ("scale", "mean", "std")
    operations = [
        Operation(kind, step.numbers(nonzero=kind != "mean")) for step in steps for kind in kinds if step.name == kind
    ]
    return replace(plan, operations=tuple(operations))


def _input_of(spec: TensorSpec, steps: dict[str, Step]) -> Plan:
    """Return the size, the layout and the element type of the model's input."""
    color = steps["color"].choice(VALUE, get_args(Order)) if "color" in steps else "rgb"
    order = next(name for name in get_args(Order) if name == color)
    channels = 1 if order == "gray" else 3
    layouts: dict[Layout, int] = {"nchw": spec.shape[1], "nhwc": spec.shape[3]}
    fitting = [name for name, count in layouts.items() if count == channels]
    requested = steps["layout"].choice(VALUE, get_args(Layout)) if "layout" in steps else ""
    if requested and requested not in fitting:
        raise steps["layout"].fault(f"the model's input is {spec}, which has no {channels} channel(s) there")
    if not fitting:
        hint = "add the step color=gray" if 1 in layouts.values() else "leave the pipeline out"
        raise InputError(f"the model's input {spec} is not a picture with {channels} channel(s)", hint=hint)
    if not requested and len(fitting) > 1:
        raise InputError(
            f"the model's input {spec} may be nchw or nhwc", hint="add the step layout=nchw or layout=nhwc"
        )
    layout = next(name for name in layouts if name == (requested or fitting[0]))
    check_element(spec, steps.get("dtype"), get_args(Element), "pictures")
    dtype = next(name for name in get_args(Element) if name == spec.dtype)
    height, width = spec.shape[2:] if layout == "nchw" else spec.shape[1:3]
    if not (1 <= width <= LARGEST_SIDE and 1 <= height <= LARGEST_SIDE):
        raise InputError(f"the model's input is {width}x{height}", hint=f"at most {LARGEST_SIDE} on a side is possible")
    return Plan(width, height, order, layout, dtype)


def _resized(plan: Plan, step: Step) -> Plan:
    fits = [fit for fit in get_args(Fit) if fit in step.values]
    if len(fits) != 1:
        raise step.fault("it needs one of stretch, letterbox and crop", "for example: resize:letterbox=640")
    fit = next(name for name in get_args(Fit) if name == fits[0])
    match = _SIZE.fullmatch(step.values[fit])
    if not match:
        raise step.fault(f"{fit} is a size such as 640 or 640x480, not {step.values[fit]!r}")
    size = (int(match[1]), int(match[2] or match[1]))
    if size != (plan.width, plan.height):
        raise step.fault(
            f"the model's input is {plan.width}x{plan.height}, not {size[0]}x{size[1]}",
            f"write {fit}={plan.width}x{plan.height}",
        )
    for key, owner in {"pad": "letterbox", "short": "crop"}.items():
        if key in step.values and fit != owner:
            raise step.fault(f"{key} is for {owner}", f"leave {key} out")
    largest = max(size)
    return replace(
        plan,
        kernel=next(
            name for name in get_args(Kernel) if name == step.choice("by", get_args(Kernel)[1:], default="opencv")
        ),
        fit=fit,
        pad=step.whole("pad", 0, 0, 255) if fit == "letterbox" else 0,
        short_side=step.whole("short", largest, largest, 2 * LARGEST_SIDE) if fit == "crop" else 0,
    )


def _after(plan: Plan, steps: Sequence[Step], outputs: Sequence[TensorSpec], written: Steps) -> Plan:
    names = [step.name for step in steps]
    if names not in (["topk"], ["softmax", "topk"], ["yolo"], ["boxes"], ["ctc"], ["softmax", "ctc"]):
        raise InputError(
            f"the steps after a model cannot be {', '.join(names)}",
            hint="write --post topk=5, --post softmax --post topk=5, --post yolo, --post boxes:boxes=NAME,scores=NAME,"
            " or --post ctc:labels=FILE",
        )
    step = steps[-1]
    if step.name == "boxes":
        return _scored_boxes(plan, step, outputs, written)
    if "head" in step.values and step.choice("head", _HEADS) in grids.CODINGS:
        return _grid(plan, step, outputs, written)
    plan = _masks(plan, step, outputs) if "masks" in step.values else plan
    number = step.output(outputs, (step.values.get("masks", ""),))
    spec = outputs[number]
    plan = replace(plan, output=number)
    if step.name == "yolo":
        plan = _boxes(plan, step, spec)
    elif step.name == "ctc":
        plan = _labels(plan, step, spec, written, softmax=len(steps) > 1)
    else:
        plan = _classes(plan, step, spec, softmax=len(steps) > 1)
    if max(plan.classes, plan.candidates) > _MOST_CANDIDATES:
        raise step.fault(f"output {spec} is too large")
    written.check_labels(step, plan.classes, spec)
    return plan


def _masks(plan: Plan, step: Step, outputs: Sequence[TensorSpec]) -> Plan:
    """Return the plan with the output of prototypes that `masks=NAME` names."""
    names = [spec.name for spec in outputs]
    if step.values["masks"] not in names or len(names) == 1:
        close = did_you_mean(step.values["masks"], names) if len(names) > 1 else ""
        hint = close or "masks=NAME is the output of prototypes, beside that of boxes"
        raise step.fault(f"the model's outputs are {', '.join(names)}", hint)
    number = names.index(step.values["masks"])
    spec = outputs[number]
    if spec.dtype != "float32" or spec.bound or len(spec.shape) != _RANK or spec.shape[0] != 1:
        raise step.fault(f"output {spec} is not a set of prototypes", "they are float32 of 1 x number x height x width")
    _, count, height, width = spec.shape
    if not (1 <= count <= _MOST_PROTOTYPES and 1 <= max(width, height) <= _LARGEST_PROTOTYPE):
        most = f"{_MOST_PROTOTYPES} of {_LARGEST_PROTOTYPE}x{_LARGEST_PROTOTYPE}"
        raise step.fault(f"output {spec} is too large", f"at most {most} are possible")
    return replace(plan, prototypes=count, mask_width=width, mask_height=height, mask_output=number)


def _scored_boxes(plan: Plan, step: Step, outputs: Sequence[TensorSpec], written: Steps) -> Plan:
    """Return the plan for two outputs: the boxes, and the scores of each box's classes."""
    boxes = step.named("boxes", outputs)
    scores = step.named("scores", outputs, (outputs[boxes].name,))
    spec = outputs[scores]
    if len(spec.shape) != _BOXES_RANK or spec.shape[0] != 1:
        raise step.fault(f"output {spec} is not a table of scores", "it is 1 x boxes x classes")
    _, count, classes = spec.shape
    plan = _anchored(plan, step, written) if "anchors" in step.values else _unanchored(plan, step)
    numbers = 4 + plan.points * plan.point_numbers
    if outputs[boxes].elements != numbers * count or outputs[boxes].shape[-1] != numbers:
        what = "four" if not plan.points else str(numbers)
        raise step.fault(f"output {outputs[boxes]} has no {what} numbers for each of the {count} boxes")
    if plan.coding != "none" and (expected := anchors.count(plan.table) + sum(x.boxes for x in plan.levels)) != count:
        made = f"they are {' + '.join(map(str, plan.levels))}" if plan.levels else ""
        raise step.fault(
            f"output {outputs[boxes]} has {count} boxes, but there are {expected} anchors",
            f"{made or 'check the file of anchors'}: each box needs an anchor, in the same order",
        )
    background = {"none": 0, "first": 1, "last": classes}[
        step.choice("background", ("none", "first", "last"), default="none")
    ]
    by = step.choice("by", ("none", "sigmoid", "softmax"), default="none")
    if classes == 1 and background:
        raise step.fault(f"output {spec} has the background alone", "leave background out")
    if max(classes, count) > _MOST_CANDIDATES:
        raise step.fault(f"output {spec} is too large")
    written.check_labels(step, classes - (background > 0), spec)
    return replace(
        plan,
        head="boxes",
        output=scores,
        box_output=boxes,
        sigmoid=by == "sigmoid",
        softmax=by == "softmax",
        background=background,
        classes=classes,
        candidates=count,
        most=step.whole("max", 300, 1, _MOST_OBJECTS),
        nms=step.number("nms", "0.45"),
        score=step.number("score", "0.25"),
    )


def _unanchored(plan: Plan, step: Step) -> Plan:
    """Return the plan for boxes that are written as they are."""
    for key in ("strides", "cells", "scales", "ratios", "each", "variances", "size", "points"):
        if key in step.values:
            raise step.fault(f"{key} is for boxes with anchors", f"write anchors=FILE, or leave {key} out")
    form = step.choice("form", get_args(Form), default="corners")
    shares = step.choice("unit", ("pixels", "share"), default="pixels") == "share"
    return replace(plan, form=next(name for name in get_args(Form) if name == form), shares=shares)


def _anchored(plan: Plan, step: Step, written: Steps) -> Plan:
    """Return the plan for boxes that are differences from anchors."""
    form = step.choice("form", ("center", "center-yx"), default="center")
    plan = replace(plan, form="center-yx" if form == "center-yx" else "center")
    convention = step.values["anchors"]
    side = (plan.width, plan.height)
    variances = [0.1, 0.1, 0.2, 0.2]
    if step.names_anchors:
        for key in ("strides", "cells", "scales", "ratios", "each"):
            if key in step.values:
                raise step.fault(f"{key} is not for a file of anchors", f"leave {key} out")
        plan = replace(
            plan, table=written.anchors, shares=step.choice("unit", ("pixels", "share"), "pixels") == "share"
        )
    else:
        if "unit" in step.values:
            raise step.fault("unit is for a file of anchors", "leave unit out")
        plan = replace(plan, levels=make_levels(step, side), offset=0.0 if convention == "retinanet" else 0.5)
        by_convention = {"retinanet": [1.0] * 4, "mediapipe": [1 / side[0], 1 / side[1]] * 2}
        variances = by_convention.get(convention, variances)
    if "variances" in step.values:
        (variances, *others) = of_levels(step, "variances")
        if others or len(variances) != 4:  # noqa: PLR2004 - x, y, width and height
            raise step.fault("variances are four numbers with + between", "for example: variances=0.1+0.1+0.2+0.2")
    size = step.choice("size", ("exp", "linear"), default="linear" if convention == "mediapipe" else "exp")
    x, y, width, height = variances
    plan = replace(plan, variances=(x, y, width, height), coding="deltas" if size == "exp" else "linear")
    if "points" not in step.values:
        return plan
    plan = _points(plan, step)
    if plan.point_numbers != 2:  # noqa: PLR2004 - x and y
        raise step.fault("key points of boxes with anchors are x and y alone", f"write points={plan.points}x2")
    return plan


def _grid(plan: Plan, step: Step, outputs: Sequence[TensorSpec], written: Steps) -> Plan:
    """Return the plan for the head of a YOLO network that does not decode its boxes."""
    grid, spec = grids.read(step, outputs, (plan.width, plan.height), channels_first=plan.layout == "nchw")
    if max(grid.boxes, grid.classes) > _MOST_CANDIDATES:
        raise step.fault(f"output {spec} is too large")
    written.check_labels(step, grid.classes, spec)
    return replace(
        plan,
        head="grid",
        output=grid.outputs[0],
        level_outputs=() if grid.storage == "joined" else grid.outputs,
        coding=grid.coding,
        storage=grid.storage,
        levels=grid.levels,
        sigmoid=grid.sigmoid,
        classes=grid.classes,
        candidates=grid.boxes,
        most=step.whole("max", 300, 1, _MOST_OBJECTS),
        nms=step.number("nms", "0.45"),
        score=step.number("score", "0.25"),
    )


def _points(plan: Plan, step: Step) -> Plan:
    """Return the plan with the key points of a box: `points=17`, or `points=17x2` without their visibility."""
    match = _POINTS.fullmatch(step.values["points"])
    if not match or not 1 <= int(match[1]) <= _MOST_POINTS:
        raise step.fault(
            f"points is a number from 1 to {_MOST_POINTS}, such as 17 or 17x2, not {step.values['points']!r}"
        )
    if plan.prototypes:
        raise step.fault("a box has key points or a mask", "leave points or masks out")
    return replace(plan, points=int(match[1]), point_numbers=int(match[2] or 3))


def _classes(plan: Plan, step: Step, spec: TensorSpec, *, softmax: bool) -> Plan:
    most = step.most(spec, _MOST_OBJECTS)
    # The lowest float: without a limit, each finite score counts.
    lowest = -3.4028234663852886e38
    return replace(plan, head="classes", softmax=softmax, most=most, classes=spec.elements, candidates=1, score=lowest)


def _labels(plan: Plan, step: Step, spec: TensorSpec, written: Steps, *, softmax: bool) -> Plan:
    table = step.label_rows(spec, written.labels, _MOST_OBJECTS, softmax=softmax)
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


def _detr(plan: Plan, step: Step, spec: TensorSpec) -> Plan:
    """Return the plan for a row of shares of the input and of scores for each box, none of which is suppressed."""
    _, rows, columns = spec.shape
    if refused := {"points", "masks", "nms"} & {*step.values}:
        raise step.fault(f"{min(refused)} is not for head=rtdetr", f"leave {min(refused)} out")
    if columns <= 4:  # noqa: PLR2004 - numbers of a box
        raise step.fault(f"output {spec} has no classes in the layout of rtdetr")
    most = step.whole("max", min(300, rows), 1, min(_MOST_OBJECTS, rows))
    score = step.number("score", "0.25")
    return replace(
        plan, head="detr", shares=True, most=most, classes=columns - 4, candidates=rows, nms=1.0, score=score
    )


def _boxes(plan: Plan, step: Step, spec: TensorSpec) -> Plan:
    if len(spec.shape) != _BOXES_RANK or spec.shape[0] != 1:
        raise step.fault(f"output {spec} is not a table of boxes")
    rows, columns = spec.shape[1:]
    if "head" not in step.values and rows == columns:
        raise step.fault(f"output {spec} does not show its layout", "write head=v5 or head=v8")
    head = step.choice("head", _HEADS, "v5" if rows > columns else "v8")
    for key in ("anchors", "strides", "by"):
        if key in step.values:
            raise step.fault(
                f"{key} is for a head that does not decode its boxes, not for {head}",
                f"write head=v5-raw, v3-raw or yolox, or leave {key} out",
            )
    if head == "rtdetr":
        return _detr(plan, step, spec)
    plan = _points(plan, step) if "points" in step.values else plan
    # v5: a row for each box, with an objectness before the classes; v8 and v11: a column, without one
    by_rows = head == "v5"
    extras = plan.points * plan.point_numbers + plan.prototypes
    others = (5 if by_rows else 4) + extras
    classes = (columns if by_rows else rows) - others
    if classes < 1:
        if extras:
            what = "key points" if plan.points else "masks"
            raise step.fault(
                f"output {spec} has no {extras} numbers for {what} after its classes, in the layout of {head}"
            )
        other = "v8" if by_rows else "v5"
        raise step.fault(f"output {spec} has no classes in the layout of {head}", f"perhaps it is head={other}")
    most = min(_MOST_OBJECTS, MOST_EXTRAS // max(plan.points, plan.prototypes, 1))
    return replace(
        plan,
        head="yolo-v5" if by_rows else "yolo-v8",
        most=step.whole("max", min(300, most), 1, most),
        classes=classes,
        candidates=math.prod(spec.shape) // (classes + others),
        nms=step.number("nms", "0.45"),
        score=step.number("score", "0.25"),
    )
