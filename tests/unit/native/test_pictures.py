"""The C++ code for pictures, compiled for this machine, beside Pillow and numpy's own computation."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.support import picture_nets
from toolchain import pictures
from toolchain.errors import InputError
from toolchain.native.pictures import FORMATS, Computer, Raw, synthetic
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

STREAM = np.random.default_rng(0)
SIZES = [tuple(map(int, row)) for row in STREAM.integers(1, 70, (40, 4))]
SIZES += [(1, 1, 7, 5), (1, 60, 3, 9), (60, 1, 9, 4), (64, 48, 32, 24), (5, 5, 5, 5), (2, 3, 64, 60)]


def computer(width, height, *pre, dtype="uint8", post=(), output=None, channels=3, prototypes=None):
    given = TensorSpec("x", (1, height, width, channels), dtype)
    outputs = None if output is None else [TensorSpec("y", output, "float32")]
    outputs = [TensorSpec("protos", prototypes, "float32"), *outputs] if prototypes else outputs
    plan = pictures.resolve(Steps((*pre, "layout=nhwc"), tuple(post)), [given], outputs).plan
    return Computer(plan)


def drawn(width, height):
    return STREAM.integers(0, 256, (height, width, 3), dtype=np.uint8)


def resized(pixels, by, width, height):
    if by == "pillow":
        return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    if by == "opencv":
        return picture_nets.opencv_linear(pixels, width, height)
    if by == "torch":
        return np.rint(picture_nets.torch_linear(pixels, width, height))
    rows, columns = (
        np.minimum(np.floor(np.arange(new) * (1 / (new / old))).astype(int), old - 1)
        for old, new in zip(pixels.shape, (height, width), strict=False)
    )
    return pixels[rows][:, columns]


@pytest.mark.parametrize("by", ["pillow", "opencv", "torch", "nearest"])
def test_a_resize_is_within_one_level_of_the_named_library(by):
    for old_width, old_height, width, height in SIZES:
        pixels = drawn(old_width, old_height)
        found = computer(width, height, f"resize:stretch={width}x{height},by={by}").prepare(Raw.of_rgb(pixels))[0]
        off = np.abs(found.astype(int) - resized(pixels, by, width, height))
        assert off.max() <= (0 if by == "nearest" else 1), (old_width, old_height, width, height)


@pytest.mark.parametrize("by", ["pillow", "opencv"])
def test_a_letterbox_keeps_the_ratio_and_fills_the_rest(by):
    for old_width, old_height, width, height in SIZES:
        pixels = drawn(old_width, old_height)
        found = computer(width, height, f"resize:letterbox={width}x{height},pad=114,by={by}").prepare(
            Raw.of_rgb(pixels)
        )[0]
        ratio = min(width / old_width, height / old_height)
        new = max(round(old_width * ratio), 1), max(round(old_height * ratio), 1)
        left, top = (width - new[0]) // 2, (height - new[1]) // 2
        expected = np.full((height, width, 3), 114)
        expected[top : top + new[1], left : left + new[0]] = resized(pixels, by, *new)
        assert np.abs(found.astype(int) - expected).max() <= 1, (old_width, old_height, width, height)


def test_a_centre_crop_is_that_of_torchvision():
    for old_width, old_height, side, _ in SIZES:
        pixels, short = drawn(old_width, old_height), side + 3
        found = computer(side, side, f"resize:crop={side},short={short},by=pillow").prepare(Raw.of_rgb(pixels))[0]
        shorter = min(old_width, old_height)
        new = int(short * old_width / shorter), int(short * old_height / shorter)
        whole = resized(pixels, "pillow", *new)
        left, top = round((new[0] - side) / 2), round((new[1] - side) / 2)
        assert np.abs(found.astype(int) - whole[top : top + side, left : left + side]).max() <= 1


def test_values_and_layouts():
    pixels = drawn(6, 4)
    given = TensorSpec("x", (1, 3, 4, 6), "float32")
    steps = Steps(("color=bgr", "scale=1/255", "mean=0.4,0.5,0.6", "std=0.2,0.3,0.4"), ())
    found = Computer(pictures.resolve(steps, [given], None).plan).prepare(Raw.of_rgb(pixels))
    expected = (pixels[..., ::-1] / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]
    np.testing.assert_allclose(found[0], expected.transpose(2, 0, 1), rtol=1e-6, atol=1e-6)
    half = computer(6, 4, "scale=1/255", dtype="float16").prepare(Raw.of_rgb(pixels))
    np.testing.assert_array_equal(half[0], (pixels.astype(np.float32) * np.float32(1 / 255)).astype(np.float16))
    signed = computer(6, 4, "mean=128", dtype="int8").prepare(Raw.of_rgb(pixels))
    np.testing.assert_array_equal(signed[0], pixels.astype(int) - 128)
    gray = computer(6, 4, "color=gray", channels=1).prepare(Raw.of_rgb(pixels))
    np.testing.assert_array_equal(gray[0, ..., 0], np.asarray(Image.fromarray(pixels).convert("L")))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2), (2, 1), (5, 3), (4, 6), (7, 1)])
def test_the_formats_of_cameras(width, height):
    pixels = drawn(width, height)
    gray = pixels[..., 0].copy()
    alpha = np.concatenate([pixels, gray[..., None]], axis=-1)
    for name, data, expected in [
        ("rgb", pixels, pixels),
        ("bgr", pixels[..., ::-1], pixels),
        ("rgba", alpha, pixels),
        ("gray", gray, np.repeat(gray[..., None], 3, -1)),
    ]:
        raw = Raw(name, width, height, np.ascontiguousarray(data).reshape(-1))
        np.testing.assert_array_equal(computer(width, height, "scale=1").prepare(raw)[0], expected)
    wide, tall = (width + 1) // 2, (height + 1) // 2
    luma, chroma = STREAM.integers(0, 256, (height, width)), STREAM.integers(0, 256, (tall, wide, 2))
    data = np.concatenate([luma.reshape(-1), chroma.reshape(-1)]).astype(np.uint8)
    spread = chroma.repeat(2, 0)[:height].repeat(2, 1)[:, :width]
    found = computer(width, height, "scale=1").prepare(Raw("nv12", width, height, data))[0]
    expected = picture_nets.rgb_of_yuv(luma, spread[..., 0], spread[..., 1])
    assert np.abs(found.astype(int) - expected).max() <= 1
    pairs = STREAM.integers(0, 256, (height, wide, 4)).astype(np.uint8)
    luma = pairs[..., ::2].reshape(height, -1)[:, :width]
    u, v = (pairs[..., index].repeat(2, 1)[:, :width] for index in (1, 3))
    found = computer(width, height, "scale=1").prepare(Raw("yuyv", width, height, pairs.reshape(-1)))[0]
    assert np.abs(found.astype(int) - picture_nets.rgb_of_yuv(luma, u, v)).max() <= 1


def test_rows_with_gaps():
    wide = drawn(9, 4)
    raw = Raw("rgb", 7, 4, wide.reshape(-1)[: 3 * 27 + 21], stride=27)
    np.testing.assert_array_equal(computer(7, 4, "scale=1").prepare(raw)[0], wide[:, :7])
    data = STREAM.integers(0, 256, 8 * 6, dtype=np.uint8)  # 5x4 pixels in rows of 8
    found = computer(5, 4, "scale=1").prepare(Raw("nv12", 5, 4, data, stride=8))[0]
    rows = data.reshape(6, 8)
    chroma = rows[4:, :6].reshape(2, 3, 2).repeat(2, 0).repeat(2, 1)[:, :5]
    expected = picture_nets.rgb_of_yuv(rows[:4, :5], chroma[..., 0], chroma[..., 1])
    assert np.abs(found.astype(int) - expected).max() <= 1


WRONG = [
    (Raw("rgb", 4, 4, np.zeros(47, np.uint8)), "47 bytes, and its size and stride need 48"),
    (Raw("rgb", 4, 4, np.zeros(49, np.uint8)), "49 bytes"),
    (Raw("rgb", 0, 4, np.zeros(48, np.uint8)), "no pixels"),
    (Raw("rgb", -4, 4, np.zeros(48, np.uint8)), "no pixels"),
    (Raw("rgb", 40000, 1, np.zeros(48, np.uint8)), "too large: 40000x1"),
    (Raw("gray", 32768, 32768, np.zeros(48, np.uint8)), "too large"),
    (Raw("rgb", 2**31 - 1, 2**31 - 1, np.zeros(48, np.uint8)), "too large"),
    (Raw("rgb", 4, 4, np.zeros(48, np.uint8), stride=11), "rows of 12 bytes, and its stride is 11"),
    (Raw("rgb", 4, 4, np.zeros(48, np.uint8), stride=13), "need 51 to 52"),
    (Raw("rgb", 4, 4, np.zeros(48, np.uint8), stride=2**63), "its stride is"),
    (Raw("rgb", 4, 4, np.zeros(48, np.uint8), chroma_stride=4), "only NV12 has"),
    (Raw("nv12", 5, 3, np.zeros(26, np.uint8)), "chroma has 11 bytes"),
    (Raw("nv12", 5, 3, np.zeros(14, np.uint8)), "first plane needs 15"),
    (Raw("nv12", 5, 3, np.zeros(27, np.uint8), stride=5), "chroma has rows of 6 bytes"),
    (Raw("yuyv", 5, 3, np.zeros(30, np.uint8)), "30 bytes"),
    (Raw("rgb", 5, 4, np.zeros(60, np.uint8)), "without a resize step it must be 4x4"),
]


@pytest.mark.parametrize(("raw", "message"), WRONG)
def test_a_picture_whose_numbers_do_not_agree_is_refused(raw, message):
    with pytest.raises(InputError, match=message):
        computer(4, 4, "scale=1").prepare(raw)


def test_the_largest_picture_is_resized_or_refused():
    data = np.zeros(3 * 32768 * 2048, np.uint8)
    for by in ("nearest", "opencv", "torch"):
        found = computer(8, 8, f"resize:stretch=8,by={by}").prepare(Raw("rgb", 2048, 32768, data))
        assert found.shape == (1, 8, 8, 3)
    with pytest.raises(InputError, match="as Pillow does it"):
        computer(4096, 8, "resize:stretch=4096x8,by=pillow").prepare(Raw("rgb", 2048, 32768, data))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("head", ["v5", "v8"])
def test_boxes_are_those_of_an_independent_suppression(head, seed):
    stream = np.random.default_rng(seed)
    count, classes, width, height = 60, 3, 37 + seed, 90 - seed
    centres, sizes = stream.uniform(0, 64, (count, 2)), stream.uniform(1, 30, (count, 2))
    scores = stream.choice([0.1, 0.3, 0.5, 0.500001, 0.9], (count, classes))  # with many that are equal
    rows = np.concatenate([centres, sizes, scores], 1).astype(np.float32)
    objectness = stream.uniform(0.5, 1, (count, 1)).astype(np.float32)
    table = rows.T if head == "v8" else np.concatenate([rows[:, :4], objectness, rows[:, 4:]], 1)
    if head == "v5":
        rows[:, 4:] *= objectness
    post = [f"yolo:head={head},nms=0.4,score=0.25,max=20"]
    made = computer(64, 64, "resize:letterbox=64", post=post, output=(1, *table.shape))
    found = made.find(width, height, [table])
    half = rows[:, 2:4] / np.float32(2)
    corners = np.concatenate([rows[:, :2] - half, rows[:, :2] + half, rows[:, 4:]], 1)
    kept = picture_nets.suppressed(corners, 0.4, 0.25, 20)
    assert len(kept) > 3
    assert [int(label) for label in found["label"]] == [label for _, label in kept]
    np.testing.assert_array_equal(found["score"], [corners[box, 4 + label] for box, label in kept])
    ratio = min(64 / width, 64 / height)
    left, top = (64 - round(width * ratio)) // 2, (64 - round(height * ratio)) // 2
    for side, offset, limit, column in [
        ("left", left, width, 0), ("top", top, height, 1), ("right", left, width, 2), ("bottom", top, height, 3),
    ]:  # fmt: skip
        expected = np.clip((corners[[box for box, _ in kept], column] - offset) / ratio, 0, limit)
        np.testing.assert_allclose(found[side], expected, rtol=1e-5, atol=1e-4)


def scene(stream, head, extra):
    """Draw the output of a head with `extra` numbers of each box after its classes; and rows of corners and scores."""
    count, classes = 60, 3
    centres, sizes = stream.uniform(0, 64, (count, 2)), stream.uniform(1, 30, (count, 2))
    rows = np.concatenate([centres, sizes, stream.uniform(0, 1, (count, classes)), extra], 1).astype(np.float32)
    table = rows.T if head == "v8" else np.insert(rows, 4, 1, axis=1)
    half = rows[:, 2:4] / np.float32(2)
    return table, np.concatenate([rows[:, :2] - half, rows[:, :2] + half, rows[:, 4 : 4 + classes]], 1)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("head", ["v5", "v8"])
@pytest.mark.parametrize("numbers", [2, 3])
def test_key_points_lie_in_the_picture(head, numbers, seed):
    stream = np.random.default_rng(seed)
    width, height, points = 37 + seed, 90 - seed, 5
    extra = stream.uniform(-5, 70, (60, points * numbers))
    if numbers == 3:
        extra[:, 2::3] = stream.uniform(0, 1, (60, points))
    table, corners = scene(stream, head, extra)
    shape = points if numbers == 3 else f"{points}x2"
    post = [f"yolo:head={head},nms=0.4,score=0.25,max=20,points={shape}"]
    made = computer(64, 64, "resize:letterbox=64", post=post, output=(1, *table.shape))
    found = made.find(width, height, [table])
    kept = picture_nets.suppressed(corners, 0.4, 0.25, 20)
    assert len(kept) > 3
    assert [int(label) for label in found["label"]] == [label for _, label in kept]
    ratio = min(64 / width, 64 / height)
    left, top = (64 - round(width * ratio)) // 2, (64 - round(height * ratio)) // 2
    own = extra[[box for box, _ in kept]].astype(np.float32).reshape(-1, points, numbers)
    expected = np.clip((own[..., :2] - [left, top]) / ratio, 0, [width, height])
    np.testing.assert_allclose(made.points()[..., :2], expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(made.points()[..., 2], own[..., 2] if numbers == 3 else 1)


def test_a_key_point_that_is_not_a_number_is_not_seen():
    table = np.float32([[8, 8, 4, 4, 0.9, np.nan, 3, 1, 5, 6, np.inf, 7, 8, 0.5]]).T
    made = computer(16, 16, "scale=1", post=["yolo:head=v8,points=3"], output=(1, 14, 1))
    made.find(16, 16, [table])
    np.testing.assert_array_equal(made.points(), np.float32([[[0, 0, 0], [0, 0, 0], [7, 8, 0.5]]]))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("head", ["v5", "v8"])
def test_masks_are_those_of_an_interpolation_of_the_whole_picture(head, seed):
    stream = np.random.default_rng(seed)
    width, height, count = 137 + seed, 90 - seed, 6
    prototypes = stream.normal(0, 1, (1, count, 16, 12 + seed)).astype(np.float32)
    extra = stream.normal(0, 1, (60, count))
    table, corners = scene(stream, head, extra)
    post = [f"yolo:head={head},nms=0.4,score=0.25,max=20,masks=protos"]
    options = {"post": post, "output": (1, *table.shape), "prototypes": prototypes.shape}
    made = computer(64, 64, "resize:letterbox=64", **options)
    found = made.find(width, height, [prototypes, table])
    kept = picture_nets.suppressed(corners, 0.4, 0.25, 20)
    assert len(kept) == len(found) > 3
    for number, (box, _) in enumerate(kept):
        sides = [found[number][side] for side in ("left", "top", "right", "bottom")]
        coefficients = extra[box].astype(np.float32)
        left, top, levels = picture_nets.mask_of(coefficients, prototypes[0], (width, height), sides, 64)
        mask = made.mask(number, prototypes)
        assert (mask.left, mask.top, mask.pixels.shape) == (left, top, levels.shape)
        sure = np.abs(levels) > 1e-9
        np.testing.assert_array_equal(mask.pixels[sure], (levels > 0)[sure])
    with pytest.raises(InputError, match="prototypes has 3 numbers"):
        made.mask(0, prototypes.reshape(-1)[:3])
    with pytest.raises(InputError, match="there is no such object"):
        made.mask(len(found), prototypes)


def test_a_mask_of_a_stretched_picture_is_pytorch_s():
    stream = np.random.default_rng(3)
    prototypes = stream.normal(0, 1, (1, 4, 8, 8)).astype(np.float32)
    coefficients = stream.normal(0, 1, 4).astype(np.float32)
    table = np.concatenate([np.float32([16, 16, 32, 32, 0.9]), coefficients])[:, None]
    post = ["yolo:head=v8,masks=protos"]
    made = computer(32, 32, "resize:stretch=32", post=post, output=(1, 9, 1), prototypes=(1, 4, 8, 8))
    made.find(50, 70, [prototypes, table])
    levels = np.tensordot(coefficients, prototypes[0], 1)
    expected = picture_nets.torch_linear(levels[..., None], 50, 70)[..., 0]
    np.testing.assert_array_equal(made.mask(0, prototypes).pixels, expected > 0)


def test_a_box_without_a_whole_pixel_has_no_mask():
    table = np.float32([[8.5, 8.5, 0.5, 0.5, 0.9, 1]]).T
    post = ["yolo:head=v8,masks=protos"]
    made = computer(16, 16, "scale=1", post=post, output=(1, 6, 1), prototypes=(1, 1, 4, 4))
    assert len(made.find(16, 16, [np.ones((1, 1, 4, 4), np.float32), table])) == 1
    assert made.mask(0, np.ones((1, 1, 4, 4), np.float32)).pixels.size == 0


def test_boxes_without_numbers_are_left_out():
    table = np.zeros((5, 4), np.float32)
    table[:, 0] = [8, 8, 4, 4, 0.9]
    table[:, 1] = [np.nan, 8, 4, 4, 0.9]
    table[:, 2] = [8, 8, np.inf, 4, 0.9]
    table[:, 3] = [40, 40, 4, 4, np.nan]
    made = computer(16, 16, "scale=1", post=["yolo:head=v8"], output=(1, 5, 4))
    assert len(made.find(16, 16, [table])) == 1
    with pytest.raises(InputError, match="has 19 numbers"):
        made.find(16, 16, [table.reshape(-1)[:19]])


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def softmax(values):
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


BY = {"none": lambda values: values, "sigmoid": sigmoid, "softmax": softmax}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", ["center", "corners", "corners-yx"])
@pytest.mark.parametrize(("by", "background"), [("sigmoid", "none"), ("softmax", "last"), ("none", "first")])
@pytest.mark.parametrize("unit", ["pixels", "share"])
def test_boxes_with_scores_in_another_output(form, by, background, unit, seed):
    """As DETR and SSD have them: the best class of each box that is not the background."""
    stream, count, classes = np.random.default_rng(seed), 60, 4
    width, height = 75 + seed, 50
    centers, sizes = stream.uniform(0, 64, (count, 2)), stream.uniform(4, 30, (count, 2))
    corners = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1)
    boxes = {
        "center": np.concatenate([centers, sizes], axis=1),
        "corners": corners,
        "corners-yx": corners[:, [1, 0, 3, 2]],
    }[form]
    scale = np.array([64, 32] * 2 if form != "corners-yx" else [32, 64] * 2) if unit == "share" else 1
    scores = stream.normal(0, 2, (count, classes)).astype(np.float32)
    step = f"boxes:boxes=b,scores=s,form={form},unit={unit},by={by},background={background},nms=0.4,score=0.3,max=9"
    given = [TensorSpec("x", (1, 32, 64, 3), "uint8")]
    outputs = [TensorSpec("s", (1, count, classes), "float32"), TensorSpec("b", (1, count, 4), "float32")]
    plan = pictures.resolve(Steps(("resize:letterbox=64x32",), (step,)), given, outputs).plan
    found = Computer(plan).find(width, height, [scores, (boxes / scale).astype(np.float32)])
    shares = BY[by](scores.astype(np.float64))
    objects = {"none": shares, "first": shares[:, 1:], "last": shares[:, :-1]}[background]
    best = objects.max(axis=1)
    kept = picture_nets.suppressed(np.concatenate([corners, objects], axis=1), 0.4, 0.3, 9)
    assert len(kept) > 3
    assert [int(label) for label in found["label"]] == [label for _, label in kept]
    ratio = min(64 / width, 32 / height)
    left, top = (64 - round(width * ratio)) // 2, (32 - round(height * ratio)) // 2
    own = np.array([corners[box] for box, _ in kept])
    expected = np.clip((own - [left, top] * 2) / ratio, 0, [width, height] * 2)
    sides = np.stack([found[side] for side in ("left", "top", "right", "bottom")], axis=1)
    np.testing.assert_allclose(sides, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found["score"], [best[box] for box, _ in kept], rtol=1e-5)


def test_rt_detr_has_shares_and_suppresses_nothing():
    middle = [0.5, 0.5, 0.5, 0.25]
    table = np.float32([[[*middle, 0.1, 0.9], [*middle, 0.2, 0.8], [0.1, 0.1, 0.1, 0.1, 0.2, 0]]])
    made = computer(64, 64, "resize:stretch=64", post=["yolo:head=rtdetr,score=0.5"], output=(1, 3, 6))
    found = made.find(200, 100, [table])
    assert [(int(item["label"]), round(float(item["score"]), 3)) for item in found] == [(1, 0.9), (1, 0.8)]
    for item in found:
        assert [float(item[side]) for side in ("left", "top", "right", "bottom")] == [50, 37.5, 150, 62.5]


def test_classes_are_ranked():
    scores = np.array([[1.0, 3.0, np.nan, 3.0, -2.0, 0.5]], np.float32)
    made = computer(4, 4, "scale=1", post=["topk=3"], output=(1, 6))
    assert [(int(item["label"]), float(item["score"])) for item in made.find(4, 4, [scores])] == [
        (1, 3),
        (3, 3),
        (0, 1),
    ]
    scores[0, 2] = 2.0
    made = computer(4, 4, "scale=1", post=["softmax", "topk=6"], output=(1, 6))
    found = made.find(4, 4, [scores])
    shares = np.exp(scores[0] - 3) / np.exp(scores[0] - 3).sum()
    np.testing.assert_allclose(found["score"], shares[found["label"]], rtol=1e-6)
    assert list(found["label"]) == [1, 3, 2, 0, 5, 4]


def test_labels_are_read_as_of_sounds():
    scores = np.zeros((1, 6, 3), np.float32)
    scores[0, range(6), [0, 1, 1, 0, 1, 2]] = [5, 6, 7, 5, 8, 9]
    given = [TensorSpec("x", (1, 4, 4, 3), "uint8")]
    steps = Steps(("scale=1",), ("ctc:labels=FILE",), ("-", "a", "b"))
    made = pictures.resolve(steps, given, [TensorSpec("y", (1, 6, 3), "float32")])
    found = Computer(made.plan).find(4, 4, [scores])
    assert [(int(item["label"]), float(item["score"])) for item in found] == [(1, 7), (1, 8), (2, 9)]
    assert made.text(found["label"]) == "aab"


def test_a_drawn_picture_has_another_size_than_the_input():
    plan = pictures.resolve(Steps(("resize:letterbox=32",), ()), [TensorSpec("x", (1, 3, 32, 32), "uint8")], None).plan
    pixels = synthetic(plan, 0)
    assert pixels.shape == (43, 69, 3)
    assert pixels.std() > 20
    assert FORMATS[0] == "rgb"


def test_colours_of_cameras_are_the_formula_to_the_last_bit():
    """All levels of Y with those of U and V, in the 20 binary digits of OpenCV."""
    luma, other = np.meshgrid(np.arange(256), np.arange(256))
    u, v = other, (other * 7 + 3) % 256
    pairs = np.stack([luma, u, luma, v], -1).astype(np.uint8)
    found = computer(512, 256, "scale=1").prepare(Raw("yuyv", 512, 256, pairs.reshape(-1)))[0]
    y, u, v = (array.astype(np.int64) for array in (np.maximum(luma - 16, 0) * 1220542 + (1 << 19), u - 128, v - 128))
    sums = (y + 1673527 * v, y - 852492 * v - 409993 * u, y + 2116026 * u)
    expected = np.stack([np.clip(part >> 20, 0, 255) for part in sums], -1)
    np.testing.assert_array_equal(found, expected.repeat(2, 1))
