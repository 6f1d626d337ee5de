"""Make the files of this folder again: python -m tests.data.exported.make [NAME ...], from the repository's root.

It needs what nothing else here needs: pip install torch==2.15.0 torchvision==0.29.2 timm==1.0.31 transformers==5.23.0
onnx==1.23.2 onnxscript==0.7.2. Each network gets random weights and is written by the exporters of PyTorch:
NAME-script.onnx.xz by the one on TorchScript, NAME-dynamo.onnx.xz by the one on torch.export. Their weights are then
taken out: tests/support/exported.py draws others like them.
"""

from __future__ import annotations

import importlib.metadata
import lzma
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import timm
import torch
import torchvision
import transformers
from torch import nn
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from tests.support import exported

FOLDER = Path(__file__).parent
PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript")
SCRIPT_OPSET, DYNAMO_OPSET = 17, 20
_MANY = 8


@dataclass(frozen=True)
class Network:
    """A network to export.

    Attributes:
        build: Makes it.
        inputs: What it is traced with, by name.
        open: Names of its open dimensions, by input and place.
        below: Exclusive upper bounds of its integer inputs.
        exporters: Those that can export it.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    open: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    exporters: tuple[str, ...] = ("script", "dynamo")


class UNet(nn.Module):
    """Two levels down and up again, once by a transposed convolution and once by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = self._block(3, 16), self._block(16, 32), self._block(32, 64)
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.narrow = nn.Conv2d(32, 16, 1)
        self.fourth, self.fifth = self._block(64, 32), self._block(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Module:
        layers = [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image)
        second = self.second(nn.functional.max_pool2d(first, 2))
        third = self.third(nn.functional.max_pool2d(second, 2))
        fourth = self.fourth(torch.cat([self.up(third), second], 1))
        wide = nn.functional.interpolate(fourth, scale_factor=2, mode="bilinear", align_corners=True)
        return self.head(self.fifth(torch.cat([self.narrow(wide), first], 1)))


class Recurrent(nn.Module):
    """A recurrent layer as speech and text models have them: a projection before, a classifier behind."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(40, 48)
        self.layers = kind(48, 64, batch_first=True, **options)
        self.head = nn.Linear(128 if options.get("bidirectional") else 64, 29)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(torch.relu(self.before(features)))[0]).log_softmax(-1)


class Heads(nn.Module):
    """The tensors of a detector, before boxes are chosen."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(list(self.backbone(image).values()))
        return found["bbox_regression"], found["cls_logits"].softmax(-1)


class Boxes(nn.Module):
    """A whole detector, with its non-maximum suppression."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        [found] = self.detector([image[0]])
        return found["boxes"], found["scores"], found["labels"]


class Named(nn.Module):
    """One output of a model that returns many by name."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.model(*args)[self.name]


def image(size: int, batch: int = 1) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"image": torch.randn(batch, 3, size, size)}


def vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: torchvision.models.get_model(name, weights=None, **options)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    return Named(transformers.BertModel(config), "last_hidden_state")


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=128, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256, max_source_positions=100
    )
    return Named(WhisperEncoder(config), "last_hidden_state")


def gpt() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=64, n_embd=128, n_layer=2, n_head=4, use_cache=False, attn_implementation="eager"
    )
    return Named(transformers.GPT2LMHeadModel(config), "logits")


def tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 1000, (1, 16)), "attention_mask": torch.ones(1, 16, dtype=torch.int64)}


def words() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 1000, (1, 16))}


def ssdlite() -> nn.Module:
    made = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    made.transform.min_size, made.transform.max_size, made.transform.fixed_size = (96,), 96, (96, 96)
    return made


SWIN = {"patch_size": [4, 4], "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": [4, 4]}
SPEECH = {"features": torch.randn(1, 25, 40)}
SEQUENCE = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}
TOKENS = {"input_ids": 1000, "attention_mask": 2}

NETWORKS = {
    "efficientnet": Network(vision("efficientnet_b0"), image(64)),
    "mobilenet-v3": Network(vision("mobilenet_v3_small"), image(96)),
    "regnet": Network(vision("regnet_y_400mf"), image(64)),
    "convnext": Network(lambda: timm.create_model("convnext_atto", depths=(1, 1, 2, 1)), image(64)),
    "vit": Network(lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3), image(64)),
    "swin": Network(lambda: torchvision.models.SwinTransformer(**SWIN), image(64)),
    "mobilevit": Network(lambda: timm.create_model("mobilevit_xxs"), image(64)),
    "ghostnet": Network(lambda: timm.create_model("ghostnet_050"), image(64)),
    "unet": Network(UNet, image(64)),
    "deeplab": Network(
        lambda: Named(vision("deeplabv3_mobilenet_v3_large", weights_backbone=None)(), "out"), image(64)
    ),
    "ssdlite": Network(lambda: Heads(ssdlite()), image(96)),
    "ssdlite-boxes": Network(lambda: Boxes(ssdlite()), image(96), exporters=("script",)),
    "bert": Network(bert, tokens, below=TOKENS),
    "gpt2": Network(gpt, words, below={"input_ids": 1000}, exporters=("dynamo",)),
    "whisper": Network(whisper, lambda: {"features": torch.randn(1, 80, 200)}),
    "lstm": Network(lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), lambda: SPEECH),
    "gru": Network(lambda: Recurrent(nn.GRU, num_layers=2), lambda: SPEECH),
    "efficientnet-open": Network(
        vision("efficientnet_b0"), image(64, 2), {"image": {0: "batch", 2: "height", 3: "width"}}
    ),
    "vit-open": Network(
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2), image(64, 2), {"image": {0: "batch"}}
    ),
    "bert-open": Network(bert, lambda: {k: v.repeat(2, 1) for k, v in tokens().items()}, SEQUENCE, TOKENS),
    "gru-open": Network(
        lambda: Recurrent(nn.GRU, bidirectional=True),
        lambda: {"features": torch.randn(2, 25, 40)},
        {"features": {0: "batch", 1: "frames"}},
    ),
}


def enliven(model: nn.Module) -> None:
    """Make parameters differ that start as one number: a normalization that does nothing hides a fault."""
    for values in (*model.parameters(), *model.buffers()):
        if values.is_floating_point() and values.numel() > 1 and values.min() == values.max():
            start = float(values.flatten()[0])
            scale = start if abs(start) > 1e-2 else 0.0  # layer scales start at 1e-6, as good as off
            values.data.copy_(
                scale * (0.8 + 0.4 * torch.rand_like(values)) + 0.1 * (1 - scale) * torch.rand_like(values)
            )


def settle(model: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    """Let the batch normalizations learn what they see, as training would: else deep networks forget their input."""
    seen = Heads(model.detector) if isinstance(model, Boxes) else model
    norms = [one for one in seen.modules() if isinstance(one, nn.BatchNorm2d)]
    for one in norms:
        one.train()
        one.momentum = 1.0
    if norms:
        seen(*(torch.randn(_MANY, *values.shape[1:]) for values in given))
    model.eval()


def written(network: Network, exporter: str) -> onnx.ModelProto:
    """Build a network and have PyTorch write it."""
    torch.manual_seed(0)
    model = network.build().eval()
    enliven(model)
    given = network.inputs()
    with torch.no_grad():
        settle(model, tuple(given.values()))
    options: dict[str, Any] = {"input_names": list(given), "dynamo": exporter == "dynamo"}
    options["opset_version"] = DYNAMO_OPSET if options["dynamo"] else SCRIPT_OPSET
    if network.open and options["dynamo"]:
        options["dynamic_shapes"] = _named(network, given)
    elif network.open:
        options["dynamic_axes"] = {name: dict(places) for name, places in network.open.items()}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "net.onnx"
        torch.onnx.export(model, tuple(given.values()), path, external_data=False, **options)
        return onnx.load(path)


def _named(network: Network, given: Mapping[str, torch.Tensor]) -> Any:
    """Return the open dimensions as torch.export wants them; a `Named` model takes its inputs as one tuple."""
    dims = {name: torch.export.Dim(name) for places in network.open.values() for name in places.values()}
    shapes = tuple({place: dims[name] for place, name in network.open.get(key, {}).items()} for key in given)
    return (shapes,) if isinstance(network.build(), Named) else shapes


def notes(network: Network) -> dict[str, Any]:
    """Return what a test needs to know, and what made the file."""
    shapes = {name: list(value.shape) for name, value in network.inputs().items()} if network.open else {}
    versions = {name: re.sub(r"\+.*", "", importlib.metadata.version(name)) for name in PACKAGES}
    return {"shapes": shapes, "below": dict(network.below), "versions": versions}


def main() -> None:
    warnings.simplefilter("ignore")
    wanted = sys.argv[1:] or NETWORKS
    for name in wanted:
        for exporter in NETWORKS[name].exporters:
            proto = written(NETWORKS[name], exporter)
            exported.strip(proto, notes(NETWORKS[name]))
            packed = lzma.compress(proto.SerializeToString(deterministic=True), preset=9)
            (FOLDER / f"{name}-{exporter}.onnx.xz").write_bytes(packed)
            sys.stdout.write(f"{name}-{exporter}: {len(packed)} bytes, {len(proto.graph.node)} nodes\n")


if __name__ == "__main__":
    main()
