"""Winograd's convolution F(2x2, 3x3) and F(4x4, 3x3), in single precision: fewer multiplications, and more memory.

Three kernels: the components of tiles of the input, their products with weights that are transformed when the model is
built, and the results, with what follows the layer. The transformed input and the products have 2.25 (F(4x4)) or 4
(F(2x2)) times the elements of what they are made of, and the weights 4 or 1.8 times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.cpu.kernels.winograd import algebra
from toolchain.backends.mali.winograd import inputs, outputs
from toolchain.backends.mali.winograd.outputs import schedule_outputs as schedule_outputs
from toolchain.backends.mali.winograd.tiling import Tiling as Tiling
from toolchain.backends.mali.winograd.tiling import choose_tiling as choose_tiling

__all__ = [
    "NAME",
    "Tiling",
    "choose_tiling",
    "convolve",
    "inputs",
    "outputs",
    "schedule_outputs",
    "transform_weights",
]

NAME = "winograd"
"""The name of the template, by which users leave it out."""

_FUSED, _ALONE = 4, 8  # TVM's kinds of operation: one that what follows is fused with, one that is a kernel


def convolve(builder: relax.BlockBuilder, bind: Any, data: Any, weights: NDArray[Any], tiling: Tiling) -> Any:
    """Write a convolution.

    Args:
        builder: Gets the kernels.
        bind: Writes a variable of a shape and a value, and returns it.
        data: Images [n, h, w, in].
        weights: [out, in, 3, 3].
        tiling: The convolution and its tiles.

    Returns:
        The expression of the results [n, h, w, out].
    """
    kernel = builder.add_func(inputs.kernel(tiling), "winograd_inputs")
    shape = (tiling.components, tiling.tiles, tiling.inputs)
    components = bind(shape, relax.call_tir(kernel, [data], relax.TensorType(shape, "float32")))
    constant = relax.const(transform_weights(weights, tiling.size), "float32")
    product = builder.call_te(
        outputs.multiply,
        components,
        constant,
        primfunc_name_hint="winograd_products",
        primfunc_attrs={"op_pattern": _ALONE},
    )
    shape = (tiling.components, tiling.tiles, tiling.outputs)
    return builder.call_te(
        lambda multiplied: outputs.results(multiplied, tiling),
        bind(shape, product),
        primfunc_name_hint="winograd_conv2d",
        primfunc_attrs={"op_pattern": _FUSED},
    )


def transform_weights(weights: NDArray[Any], size: int) -> NDArray[np.float32]:
    """Transform weights [out, in, 3, 3] to [component, in, out], in double precision until they are rounded."""
    side = size + algebra.TAPS - 1
    components = algebra.filters(weights, size).reshape(side, side, *weights.shape[:2])
    # Components of CPUs are numbered by columns.
    return np.ascontiguousarray(components.transpose(1, 0, 3, 2).reshape(side**2, *weights.shape[1::-1]), np.float32)
