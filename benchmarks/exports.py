r"""Export networks of modern architectures, with random weights, for benchmarks/cpu.py.

    python3 -m venv ENV
    ENV/bin/pip install torch==2.13.0 torchvision==0.28.0 timm==1.0.20 transformers==5.24.0 onnx==1.23.2 \
        onnxscript==0.7.2
    ENV/bin/python benchmarks/exports.py FOLDER [NAME ...]
    python benchmarks/cpu.py FOLDER/*.onnx

It needs PyTorch, which the project does not: it runs in an environment of its own, and imports nothing of the project.
Each network is written to FOLDER/NAME.onnx by the exporter on torch.export, with batch 1 and fixed shapes. The weights
are drawn with one seed; those of normalisations keep their initial values, so that outputs neither vanish nor overflow.
A network that cannot be exported is reported, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

SEED = 7
OPSET = 20

Traced = tuple[nn.Module, tuple[Tensor, ...]]


class Output(nn.Module):
    """A network of transformers, of which one tensor of the result is exported."""

    def __init__(self, network: nn.Module, field: str, **options: Any) -> None:
        super().__init__()
        self.network, self.field, self.options = network, field, options

    def forward(self, inputs: Tensor) -> Any:
        return getattr(self.network(inputs, **self.options), self.field)


def picture(side: int) -> tuple[Tensor]:
    return (torch.randn(1, 3, side, side),)


def of_timm(name: str, side: int = 224, **options: Any) -> Callable[[], Traced]:
    return lambda: (timm.create_model(name, pretrained=False, exportable=True, **options), picture(side))


def segformer() -> Traced:
    config = transformers.SegformerConfig(num_labels=150)
    return Output(transformers.SegformerForSemanticSegmentation(config), "logits"), picture(512)


def hubert() -> Traced:
    config = transformers.HubertConfig(attn_implementation="eager")
    return Output(transformers.HubertModel(config), "last_hidden_state"), (torch.randn(1, 16000),)


def wav2vec2() -> Traced:
    config = transformers.Wav2Vec2Config(attn_implementation="eager")
    return Output(transformers.Wav2Vec2Model(config), "last_hidden_state"), (torch.randn(1, 16000),)


def hifigan() -> Traced:
    return transformers.SpeechT5HifiGan(transformers.SpeechT5HifiGanConfig()), (torch.randn(1, 64, 80),)


def clip() -> Traced:
    config = transformers.CLIPVisionConfig(attn_implementation="eager")
    return Output(transformers.CLIPVisionModel(config), "pooler_output"), picture(224)


class WhisperStep(nn.Module):
    """One step of Whisper-tiny's decoder: a token, the states of the encoder, and no cache."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.WhisperConfig(
            d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
            encoder_ffn_dim=1536, decoder_ffn_dim=1536, attn_implementation="eager",
        )  # fmt: skip
        self.decoder = transformers.WhisperModel(config).decoder

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        return self.decoder(tokens, encoder_hidden_states=states, use_cache=False).last_hidden_state


def whisper_step() -> Traced:
    return WhisperStep(), (torch.tensor([[17, 3, 42, 8]]), torch.randn(1, 1500, 384))


class DecoderStep(nn.Module):
    """One token through a decoder-only network of Llama's kind, whose caches are inputs and outputs."""

    LAYERS, HEADS, WIDTH, PAST = 6, 8, 512, 127

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=8000, hidden_size=self.WIDTH, intermediate_size=1408, num_hidden_layers=self.LAYERS,
            num_attention_heads=self.HEADS, num_key_value_heads=self.HEADS, attn_implementation="eager",
        )  # fmt: skip
        self.network = transformers.LlamaForCausalLM(config)

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache = transformers.DynamicCache()
        for layer in range(self.LAYERS):
            cache.update(keys[layer], values[layer], layer)
        result = self.network(token, past_key_values=cache, use_cache=True)
        layers = result.past_key_values.layers
        return result.logits, torch.stack([layer.keys for layer in layers]), torch.stack([it.values for it in layers])


def decoder_step() -> Traced:
    shape = DecoderStep.LAYERS, 1, DecoderStep.HEADS, DecoderStep.PAST, DecoderStep.WIDTH // DecoderStep.HEADS
    return DecoderStep(), (torch.tensor([[5]]), torch.randn(shape), torch.randn(shape))


def rt_detr() -> Traced:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[128, 256, 512], decoder_layers=3,
        attn_implementation="eager", anchor_image_size=[640, 640],
    )  # fmt: skip
    return Output(transformers.RTDetrForObjectDetection(config), "logits"), picture(640)


class DiffusionBlock(nn.Module):
    """A level of a diffusion network: two residual blocks with a time step, self-attention, and one sampled down."""

    def __init__(self, channels: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.time = nn.ModuleList(nn.Linear(256, channels) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(5))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        for i in range(2):
            h = self.convs[2 * i](nn.functional.silu(self.norms[2 * i](x)))
            h = h + self.time[i](nn.functional.silu(step))[:, :, None, None]
            x = x + self.convs[2 * i + 1](nn.functional.silu(self.norms[2 * i + 1](h)))
        tokens = self.norms[4](x).flatten(2).transpose(1, 2)
        tokens = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.down(x + tokens.transpose(1, 2).reshape(x.shape))


def diffusion_block() -> Traced:
    return DiffusionBlock(), (torch.randn(1, 128, 32, 32), torch.randn(1, 256))


def r3d() -> Traced:
    return torchvision.models.video.r3d_18(weights=None), (torch.randn(1, 3, 8, 112, 112),)


class Crnn(nn.Module):
    """A recognizer of lines of text: convolutions, two LSTMs in both directions, and one class per column for CTC."""

    def __init__(self, classes: int = 97) -> None:
        super().__init__()
        widths = [1, 64, 128, 256, 256, 512, 512]
        pools = [(2, 2), (2, 2), None, (2, 1), None, (2, 1)]
        layers: list[nn.Module] = []
        for inputs, outputs, pool in zip(widths, widths[1:], pools, strict=False):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(pool)] if pool else []
        self.features = nn.Sequential(*layers, nn.Conv2d(512, 512, (2, 1)), nn.ReLU())
        self.lstm = nn.LSTM(512, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.classes = nn.Linear(512, classes)

    def forward(self, line: Tensor) -> Tensor:
        return self.classes(self.lstm(self.features(line).squeeze(2).transpose(1, 2))[0]).log_softmax(-1)


def crnn() -> Traced:
    return Crnn(), (torch.randn(1, 1, 32, 128),)


def yolo(name: str) -> Callable[[], Traced]:
    def make() -> Traced:
        import ultralytics

        network = ultralytics.YOLO(f"{name}.yaml").model
        network.fuse()
        head = network.model[-1]
        head.export, head.format = True, "onnx"
        return network, picture(640)

    return make


NETWORKS: dict[str, Callable[[], Traced]] = {
    "segformer-b0": segformer,
    "efficientvit-b0": of_timm("efficientvit_b0"),
    "hubert": hubert,
    "wav2vec2": wav2vec2,
    "hifigan": hifigan,
    "convnextv2-atto": of_timm("convnextv2_atto"),
    "mobilenetv4-small": of_timm("mobilenetv4_conv_small"),
    "fastvit-t8": of_timm("fastvit_t8", 256),
    "levit-128": of_timm("levit_128"),
    "dinov2-small": of_timm("vit_small_patch14_dinov2", img_size=224),
    "clip-vision": clip,
    "whisper-step": whisper_step,
    "decoder-step": decoder_step,
    "rt-detr-r18": rt_detr,
    "yolo11n": yolo("yolo11n"),
    "yolo26n": yolo("yolo26n"),
    "diffusion-block": diffusion_block,
    "r3d-18": r3d,
    "crnn": crnn,
}


def randomize(network: nn.Module) -> None:
    """Give layers that start as zeros, such as scales of residual branches, values that take part in the result."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.abs().max() < 1e-3:
                parameter.normal_(0, 0.05)


def export(name: str, path: Path) -> None:
    torch.manual_seed(SEED)
    network, inputs = NETWORKS[name]()
    network.eval()
    randomize(network)
    partial = path.with_suffix(".partial")
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(network, inputs, dynamo=True, opset_version=OPSET, optimize=True, verbose=False)
        program.save(partial, external_data=False)
    partial.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Export networks of modern architectures.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in NETWORKS]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in arguments.names or NETWORKS:
        try:
            export(name, arguments.folder / f"{name}.onnx")
            print(f"{name}: exported", flush=True)
        except Exception as fault:  # noqa: BLE001 - exporters raise anything, and the other networks are still wanted
            failed += 1
            print(f"{name}: {type(fault).__name__}: {str(fault).splitlines()[0][:300]}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
