"""Check a stream before it runs: what a wrong one would do to the FPGA, and to the memory around its buffers."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from toolchain.backends.vta.device import native
from toolchain.errors import VerificationError

_ERROR_BYTES = 2048


def verify(data: bytes) -> None:
    """Check a stream's bytes as a board does before it runs them; `runtime/vta/verify.h` lists the checks.

    Args:
        data: What `Stream.encoded` returns.

    Raises:
        VerificationError: It may not run: the message names the instruction and the cause.
        BuildError: The library that checks cannot be built.
    """
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if _library().vta_stream_verify(data, len(data), error, _ERROR_BYTES):
        raise VerificationError(
            f"the VTA stream may not run: {error.value.decode(errors='replace')}", hint="build the kernel again"
        )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = native.loaded()
    library.vta_stream_verify.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    return library
