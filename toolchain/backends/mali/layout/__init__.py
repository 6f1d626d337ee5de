"""Channels last: convolutions and what is between them read and write vectors of neighbouring channels.

ONNX has images as NCHW. Mali GPUs load and compute with vectors of four, and channels are what convolutions have in
fours, so images are transposed to NHWC (3-D ones to NDHWC, and so on) where the first convolution reads them, and back
where an operation reads them that is not known here. Weights are transposed when the model is built.

TVM's own pass, ConvertLayout, fails for half of the networks: it knows no tuples, and no views of other rank.
"""

from toolchain.backends.mali.layout.images import channels_last
from toolchain.backends.mali.layout.names import use_c_names

__all__ = ["channels_last", "use_c_names"]
