"""What a convolution is made of; what it computes is seen in test_opencl_winograd.py, as its kernels are for GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from toolchain.backends.mali import winograd
from toolchain.backends.mali.winograd.tiling import INPUTS, OUTPUTS

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("size", [2, 4])
def test_weights_are_transformed_for_the_same_points_as_images_and_results(size):
    image, weights = RANDOM.standard_normal((size + 2, size + 2)), RANDOM.standard_normal((8, 4, 3, 3)).astype("f4")
    components = winograd.transform_weights(weights, size)
    assert components.dtype == np.float32
    before, after = np.array(INPUTS[size]), np.array(OUTPUTS[size])
    products = (before @ image @ before.T).reshape(-1, 1, 1) * components
    result = np.einsum("ik,jl,klco->ijco", after, after, products.reshape(size + 2, size + 2, 4, 8))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
    np.testing.assert_allclose(result, np.einsum("ijkl,ockl->ijco", windows, weights), atol=1e-5)


def test_a_convolution_is_three_kernels():
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType((2, 7, 5, 4), "float32"))
    with builder.function("main", [data]):
        weights = RANDOM.standard_normal((8, 4, 3, 3)).astype(np.float32)
        tiling = winograd.Tiling((2, 7, 5, 4), 8, (1, 1, 1, 1), 4)
        call = winograd.convolve(builder, lambda _shape, value: builder.emit(value), data, weights, tiling)
        builder.emit_func_output(builder.emit(call))
    names = {variable.name_hint for variable in builder.get().get_global_vars()}
    assert names == {"main", "winograd_inputs", "winograd_products", "winograd_conv2d"}
