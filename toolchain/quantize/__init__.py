"""From a network on floats to one that computes in int8: calibrated, written in ONNX's QDQ form, and compared."""

from toolchain.quantize.network import (
    METHODS,
    LayerReport,
    Quantized,
    Settings,
    has_ranges,
    is_quantized,
    quantizable,
    quantized,
)

__all__ = ["METHODS", "LayerReport", "Quantized", "Settings", "has_ranges", "is_quantized", "quantizable", "quantized"]
