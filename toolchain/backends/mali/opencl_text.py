"""What is changed in the OpenCL C that TVM writes, before a driver compiles it.

TVM's generator is made for CUDA first. Each rewrite knows one thing that it writes wrongly or too carefully for OpenCL.
They read the text in the form that TVM gives it: one statement in a line.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

from toolchain.backends.mali import dot_product, nan_clip
from toolchain.backends.mali.aligned_access import align_vectors
from toolchain.backends.mali.bool_vectors import negate_shared_conditions
from toolchain.backends.mali.byte_vectors import write_byte_vectors
from toolchain.backends.mali.const_pointers import declare_const
from toolchain.backends.mali.images import read_images

REWRITES = (
    negate_shared_conditions,
    write_byte_vectors,
    align_vectors,
    declare_const,
    read_images,  # needs const pointers and aligned loads
    nan_clip.add_helpers,
    dot_product.add_helper,
)
"""In this order."""


def register() -> None:
    """Have TVM call the rewrites for each OpenCL module that it writes in this process."""
    tvm_ffi.register_global_func("tvm_callback_opencl_postproc", _rewrite, override=True)


def _rewrite(source: str, target: Any) -> str:  # noqa: ARG001 - TVM passes it
    for rewrite in REWRITES:
        source = rewrite(source)
    return source
