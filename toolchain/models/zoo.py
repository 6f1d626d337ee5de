"""The predefined networks: well-known architectures as ONNX models with seeded random weights.

Nothing is downloaded. The weights are random, but scaled such that activations stay moderate through the whole network
and the output depends on the input: a constant or saturated output would hide errors of a compiled model.

Every network has one float32 input `data` and one output `prob`, a softmax of shape 1 x classes.

`zoo:NAME` is always the zoo's network, and a name with a slash, such as `./NAME`, always a path. A bare name may be
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from toolchain.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import onnx

    from toolchain.models.zoo_graph import GraphBuilder, Size, Tensor


PREFIX = "zoo:"


def network(model: str) -> str:
    """Return the zoo's network that a model's name stands for; empty if it is a path.

    A file has precedence over the zoo's network of the same name; a folder has not, since it is not a model.
    """
    if not model.startswith(PREFIX):
        return model if model in NAMES and not Path(model).is_file() else ""
    name = model.removeprefix(PREFIX)
    if name not in NAMES:
        raise InputError(
            f"the zoo has no network {name!r}",
            details="networks of the zoo: " + ", ".join(NAMES),
            hint=did_you_mean(name, NAMES) or "`toolchain model list` shows them",
        )
    return name


def ambiguity(model: str, *, built: bool) -> str:
    """Say which is used if the zoo's network and a path have the same name; empty otherwise.

    `built` says whether the path is a package or bundle, and the command takes those.
    """
    path = Path(model)
    if model not in NAMES or not path.exists():
        return ""
    kind = "folder" if path.is_dir() else "file"
    if built or path.is_file():
        return f"{model} is the {kind} ./{model} here; zoo:{model} names the zoo's network"
    return f"{model} is the zoo's network; ./{model} names the {kind} here"


_IMAGE = (1, 3, 224, 224)
_IMAGENET = 1000
_KINETICS = 400

# He's factor 2 compensates for the half of the variance that a ReLU removes; layers without a ReLU divide by it.
_LINEAR = 0.5**0.5
# The maximum over a 3x3 window has about four times the second moment of its elements.
_POOLED = 0.5


def describe(name: str) -> str:
    """Return one line about a network: what it is, its input, its size and its source."""
    network = _find(name)
    shape = "x".join(str(length) for length in network.shape)
    return f"{network.title}, input {shape}, {network.parameters} parameters ({network.source})"


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build one of the networks `NAMES`; equal seeds give equal bytes.

    It has opset 17, the input `data` and the output `prob`. `data` is 1x3x224x224 except for inception_v3
    (1x3x299x299), resnet3d-18 (1x3x16x112x112) and mlp (1x1x28x28); `prob` is 1x1000 except for resnet3d-18 (1x400) and
    mlp (1x10).
    """
    network = _find(name)
    # onnx and numpy take most of a second to import; listing the names does without them.
    from toolchain.models.zoo_graph import GraphBuilder  # noqa: PLC0415

    graph = GraphBuilder(name, network.shape, seed)
    return graph.finish(network.body(graph, graph.input))


def _find(name: str) -> _Network:
    if name in _NETWORKS:
        return _NETWORKS[name]
    raise InputError(
        f"there is no predefined network named {name!r}",
        details="the predefined networks: " + ", ".join(NAMES),
        hint=did_you_mean(name, NAMES) or "list them: `toolchain model list`",
    )


class Layer(NamedTuple):
    """A convolution, with the normalisation after it if there is one.

    `pad` is half the kernel by default. As many `groups` as input channels make it depthwise. `gain` is a factor on the
    output's magnitude, set by the normalisation or else by the weights.
    """

    channels: int
    kernel: Size
    stride: Size = 1
    pad: Size | None = None
    groups: int = 1
    gain: float = 1.0


def _conv_relu(g: GraphBuilder, name: str, x: Tensor, layer: Layer) -> Tensor:
    return g.relu(f"{name}.relu", g.conv(f"{name}.conv", x, layer, bias=True))


def _conv_norm(g: GraphBuilder, name: str, x: Tensor, layer: Layer) -> Tensor:
    x = g.conv(f"{name}.conv", x, layer._replace(gain=1.0))
    return g.norm(f"{name}.bn", x, gain=layer.gain)


def _conv_norm_relu(g: GraphBuilder, name: str, x: Tensor, layer: Layer) -> Tensor:
    return g.relu(f"{name}.relu", _conv_norm(g, name, x, layer))


def _conv_norm_relu6(g: GraphBuilder, name: str, x: Tensor, layer: Layer) -> Tensor:
    return g.relu6(f"{name}.relu6", _conv_norm(g, name, x, layer))


def _norm_relu(g: GraphBuilder, name: str, x: Tensor) -> Tensor:
    return g.relu(f"{name}.relu", g.norm(f"{name}.bn", x))


def _classifier(g: GraphBuilder, x: Tensor, classes: int) -> Tensor:
    x = g.global_average_pool("pool", x)
    return g.dense("fc", g.flatten("flatten", x, x.channels), classes)


_RESNET_STEM = Layer(64, 7, 2, gain=_LINEAR * _POOLED)


@dataclass(frozen=True)
class _ResNet:
    """The parameters of a residual network."""

    depths: tuple[int, int, int, int]
    bottleneck: bool = False
    preactivation: bool = False
    classes: int = _IMAGENET
    stem: Layer = _RESNET_STEM
    stem_pool: bool = True

    def branch(self, width: int, stride: int) -> list[Layer]:
        """Return the convolutions of one unit. A bottleneck strides in its 3x3, as relay.testing's does."""
        # Makes the variance grow by one factor from the first unit to the last, whatever the depth.
        gain = float(sum(self.depths) ** -0.5)
        if self.bottleneck:
            return [Layer(width, 1), Layer(width, 3, stride), Layer(4 * width, 1, gain=gain)]
        return [Layer(width, 3, stride), Layer(width, 3, gain=gain)]


def _resnet(g: GraphBuilder, x: Tensor, plan: _ResNet) -> Tensor:
    unit = _preactivated_unit if plan.preactivation else _unit
    if plan.preactivation:
        x = g.norm("data.bn", x)  # standardises the image, as in relay.testing and Gluon
    x = _conv_norm_relu(g, "stem", x, plan.stem)
    x = g.max_pool("stem.pool", x, 3, stride=2, pad=1) if plan.stem_pool else x
    for stage, depth in enumerate(plan.depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            layers = plan.branch(64 * 2**stage, stride)
            x = unit(g, f"stage{stage + 1}.unit{index + 1}", x, layers)
    if plan.preactivation:
        x = _norm_relu(g, "last", x)
    return _classifier(g, x, plan.classes)


def _unit(g: GraphBuilder, name: str, x: Tensor, layers: list[Layer]) -> Tensor:
    *inner, last = layers
    y = x
    for index, layer in enumerate(inner, start=1):
        y = _conv_norm_relu(g, f"{name}.{index}", y, layer)
    y = _conv_norm(g, f"{name}.{len(layers)}", y, last)
    if projection := _projection(x, layers):
        x = _conv_norm(g, f"{name}.shortcut", x, projection)
    return g.relu(f"{name}.relu", g.add(f"{name}.add", y, x))


def _preactivated_unit(g: GraphBuilder, name: str, x: Tensor, layers: list[Layer]) -> Tensor:
    y = _norm_relu(g, f"{name}.1", x)
    if projection := _projection(x, layers):
        x = g.conv(f"{name}.shortcut.conv", y, projection)
    *inner, last = layers
    for index, layer in enumerate(inner, start=1):
        y = g.conv(f"{name}.{index}.conv", y, layer)
        y = _norm_relu(g, f"{name}.{index + 1}", y)
    return g.add(f"{name}.add", g.conv(f"{name}.{len(layers)}.conv", y, last), x)


# Where the shortcut is the identity, it has no convolution.
def _projection(x: Tensor, layers: list[Layer]) -> Layer | None:
    channels = layers[-1].channels
    stride = next((layer.stride for layer in layers if layer.stride != 1), 1)
    return None if stride == 1 and x.channels == channels else Layer(channels, 1, stride)


# Output channels and stride of each separable convolution: table 1 of the paper.
_MOBILENET = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)


def _mobilenet(g: GraphBuilder, x: Tensor) -> Tensor:
    x = _conv_norm_relu(g, "stem", x, Layer(32, 3, 2, gain=_LINEAR))
    for index, (channels, stride) in enumerate(_MOBILENET, start=1):
        depthwise = Layer(x.channels, 3, stride, groups=x.channels)
        x = _conv_norm_relu(g, f"block{index}.depthwise", x, depthwise)
        x = _conv_norm_relu(g, f"block{index}.pointwise", x, Layer(channels, 1))
    return _classifier(g, x, _IMAGENET)


# Expansion, output channels and stride of each inverted residual: table 2 of the paper with its rows repeated.
_MOBILENET_V2 = (
    *((1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2), (6, 32, 1), (6, 32, 1)),
    *((6, 64, 2), (6, 64, 1), (6, 64, 1), (6, 64, 1), (6, 96, 1), (6, 96, 1), (6, 96, 1)),
    *((6, 160, 2), (6, 160, 1), (6, 160, 1), (6, 320, 1)),
)


def _mobilenet_v2(g: GraphBuilder, x: Tensor) -> Tensor:
    x = _conv_norm_relu6(g, "stem", x, Layer(32, 3, 2, gain=_LINEAR))
    for index, (expansion, channels, stride) in enumerate(_MOBILENET_V2, start=1):
        name, width = f"block{index}", expansion * x.channels
        y = x if expansion == 1 else _conv_norm_relu6(g, f"{name}.expand", x, Layer(width, 1))
        y = _conv_norm_relu6(g, f"{name}.depthwise", y, Layer(width, 3, stride, groups=width))
        residual = stride == 1 and channels == x.channels
        # As in a ResNet: the variance grows by one factor over all residual blocks.
        gain = _LINEAR * len(_MOBILENET_V2) ** -0.5 if residual else _LINEAR
        y = _conv_norm(g, f"{name}.project", y, Layer(channels, 1, gain=gain))
        x = g.add(f"{name}.add", y, x) if residual else y
    return _classifier(g, _conv_norm_relu6(g, "last", x, Layer(1280, 1)), _IMAGENET)


# Channels of the squeeze and of each of the two expansions, and whether a pooling comes first.
_SQUEEZENET = (
    *((16, 64, True), (16, 64, False), (32, 128, True), (32, 128, False)),
    *((48, 192, True), (48, 192, False), (64, 256, False), (64, 256, False)),
)


def _squeezenet(g: GraphBuilder, x: Tensor) -> Tensor:
    x = _conv_relu(g, "stem", x, Layer(64, 3, 2, pad=0, gain=_LINEAR))
    for index, (squeeze, expand, pooled) in enumerate(_SQUEEZENET, start=1):
        if pooled:
            x = g.max_pool(f"pool{index}", x, 3, stride=2)
        name = f"fire{index}"
        x = _conv_relu(g, f"{name}.squeeze", x, Layer(squeeze, 1, gain=_POOLED if pooled else 1.0))
        expanded = [_conv_relu(g, f"{name}.expand{kernel}x{kernel}", x, Layer(expand, kernel)) for kernel in (1, 3)]
        x = g.concat(f"{name}.concat", expanded)
    # The mean over the grid follows, which leaves little of the spread: the gain compensates for that.
    x = _conv_relu(g, "last", x, Layer(_IMAGENET, 1, gain=4.0))
    return g.flatten("flatten", g.global_average_pool("pool", x), x.channels)


class _Branch(NamedTuple):
    """One of the parallel paths through an inception module: convolutions, one after the other.

    `pool` is a 3x3 pooling before them: the mean at stride 1 or the maximum at stride 2. With `fork` it ends in a 1x3
    and a 3x1 side by side, each as wide as the last layer.
    """

    layers: tuple[Layer, ...]
    pool: Literal["", "mean", "max"] = ""
    fork: bool = False


# The module at 35x35: figure 5 of the paper.
def _square(pooled: int) -> tuple[_Branch, ...]:
    return (
        _Branch((Layer(64, 1),)),
        _Branch((Layer(48, 1), Layer(64, 5))),
        _Branch((Layer(64, 1), Layer(96, 3), Layer(96, 3))),
        _Branch((Layer(pooled, 1),), pool="mean"),
    )


# The module at 17x17, whose 7x7 convolutions are split in two: figure 6.
def _factorised(width: int) -> tuple[_Branch, ...]:
    row, column = (1, 7), (7, 1)
    twice = (Layer(width, column), Layer(width, row), Layer(width, column), Layer(192, row))
    return (
        _Branch((Layer(192, 1),)),
        _Branch((Layer(width, 1), Layer(width, row), Layer(192, column))),
        _Branch((Layer(width, 1), *twice)),
        _Branch((Layer(192, 1),), pool="mean"),
    )


# The module at 8x8: figure 7.
_EXPANDED = (
    _Branch((Layer(320, 1),)),
    _Branch((Layer(384, 1),), fork=True),
    _Branch((Layer(448, 1), Layer(384, 3)), fork=True),
    _Branch((Layer(192, 1),), pool="mean"),
)

# The two modules that halve the grid: figure 10.
_TO_17 = (
    _Branch((Layer(384, 3, 2, pad=0),)),
    _Branch((Layer(64, 1), Layer(96, 3), Layer(96, 3, 2, pad=0))),
    _Branch((), pool="max"),
)
_TO_8 = (
    _Branch((Layer(192, 1), Layer(320, 3, 2, pad=0))),
    _Branch((Layer(192, 1), Layer(192, (1, 7)), Layer(192, (7, 1)), Layer(192, 3, 2, pad=0))),
    _Branch((), pool="max"),
)

_INCEPTION_V3 = (
    *(_square(32), _square(64), _square(64), _TO_17),
    *(_factorised(128), _factorised(160), _factorised(160), _factorised(192), _TO_8),
    *(_EXPANDED, _EXPANDED),
)

_INCEPTION_STEM = (
    (Layer(32, 3, 2, pad=0, gain=_LINEAR), Layer(32, 3, pad=0), Layer(64, 3, gain=_POOLED)),
    (Layer(80, 1), Layer(192, 3, pad=0, gain=_POOLED)),
)


def _inception_v3(g: GraphBuilder, x: Tensor) -> Tensor:
    for index, layers in enumerate(_INCEPTION_STEM, start=1):
        x = _chain(g, f"stem{index}", x, layers)
        x = g.max_pool(f"stem{index}.pool", x, 3, stride=2)
    for index, module in enumerate(_INCEPTION_V3, start=1):
        branches = [_branch(g, f"module{index}.branch{n}", x, branch) for n, branch in enumerate(module, start=1)]
        x = g.concat(f"module{index}.concat", branches)
    return _classifier(g, x, _IMAGENET)


def _branch(g: GraphBuilder, name: str, x: Tensor, branch: _Branch) -> Tensor:
    if branch.pool == "mean":
        x = g.average_pool(f"{name}.pool", x, 3, stride=1, pad=1)
    elif branch.pool == "max":
        x = g.max_pool(f"{name}.pool", x, 3, stride=2)
    x = _chain(g, name, x, branch.layers)
    if not branch.fork:
        return x
    sides = [Layer(x.channels, kernel) for kernel in ((1, 3), (3, 1))]
    return g.concat(f"{name}.fork", [_conv_norm_relu(g, f"{name}.fork{n}", x, s) for n, s in enumerate(sides, 1)])


def _chain(g: GraphBuilder, name: str, x: Tensor, layers: tuple[Layer, ...]) -> Tensor:
    for index, layer in enumerate(layers, start=1):
        x = _conv_norm_relu(g, f"{name}.{index}", x, layer)
    return x


def _mlp(g: GraphBuilder, x: Tensor) -> Tensor:
    x = g.flatten("flatten", x, 28 * 28)
    x = g.relu("relu1", g.dense("fc1", x, 128, gain=_LINEAR))
    x = g.relu("relu2", g.dense("fc2", x, 64))
    return g.dense("fc3", x, 10, gain=_LINEAR)


@dataclass(frozen=True)
class _Network:
    """One entry of the catalogue; `body` adds the layers from the input to the logits."""

    title: str
    parameters: str  # rounded, without the running statistics of batch normalisations
    source: str
    body: Callable[[GraphBuilder, Tensor], Tensor]
    shape: tuple[int, ...] = _IMAGE


def _resnet_entry(depth: int, parameters: str, plan: _ResNet) -> _Network:
    version, paper = ("v2, pre-activation", "1603.05027") if plan.preactivation else ("v1", "1512.03385")
    return _Network(
        f"ResNet-{depth} {version}", parameters, f"He et al. 2016, arXiv:{paper}", partial(_resnet, plan=plan)
    )


_R3D = _ResNet((2, 2, 2, 2), classes=_KINETICS, stem=Layer(64, (3, 7, 7), (1, 2, 2), gain=_LINEAR), stem_pool=False)

_NETWORKS = {
    "resnet-18": _resnet_entry(18, "11.7 M", _ResNet((2, 2, 2, 2))),
    "resnet-34": _resnet_entry(34, "21.8 M", _ResNet((3, 4, 6, 3))),
    "resnet-50": _resnet_entry(50, "25.6 M", _ResNet((3, 4, 6, 3), bottleneck=True)),
    "resnet-101": _resnet_entry(101, "44.5 M", _ResNet((3, 4, 23, 3), bottleneck=True)),
    "resnet-18-v2": _resnet_entry(18, "11.7 M", _ResNet((2, 2, 2, 2), preactivation=True)),
    "resnet-34-v2": _resnet_entry(34, "21.8 M", _ResNet((3, 4, 6, 3), preactivation=True)),
    "resnet-50-v2": _resnet_entry(50, "25.5 M", _ResNet((3, 4, 6, 3), bottleneck=True, preactivation=True)),
    "resnet-101-v2": _resnet_entry(101, "44.5 M", _ResNet((3, 4, 23, 3), bottleneck=True, preactivation=True)),
    "resnet3d-18": _Network(
        "R3D-18, 3-D ResNet for video",
        "33.4 M",
        "Tran et al. 2018, arXiv:1711.11248",
        partial(_resnet, plan=_R3D),
        (1, 3, 16, 112, 112),
    ),
    "mobilenet": _Network("MobileNet v1", "4.2 M", "Howard et al. 2017, arXiv:1704.04861", _mobilenet),
    "mobilenet_v2": _Network("MobileNet v2", "3.5 M", "Sandler et al. 2018, arXiv:1801.04381", _mobilenet_v2),
    "squeezenet_v1.1": _Network("SqueezeNet v1.1", "1.2 M", "Iandola et al. 2016, arXiv:1602.07360", _squeezenet),
    "inception_v3": _Network(
        "Inception v3 without the auxiliary head",
        "23.8 M",
        "Szegedy et al. 2016, arXiv:1512.00567",
        _inception_v3,
        (1, 3, 299, 299),
    ),
    "mlp": _Network("Three dense layers for MNIST", "0.1 M", "relay.testing.mlp", _mlp, (1, 1, 28, 28)),
}

NAMES: tuple[str, ...] = tuple(_NETWORKS)
