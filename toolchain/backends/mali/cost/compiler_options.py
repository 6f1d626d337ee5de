"""The options that kernels are compiled with: those of the runtime on a board first, then a user's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolchain.errors import InputError

DEFAULT = ("-cl-std=CL1.2",)
"""As runtime/opencl/build_options.cc has them for every driver that knows OpenCL C 1.2, which all of these GPUs' do."""

_OPTION = re.compile(r"-[A-Za-z][ -~]*")
_MOST_LETTERS = 2000


def check_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return a user's options, each once.

    Raises:
        InputError: One is not a valid option of an OpenCL compiler, or they are too long.
    """
    for option in options:
        if not _OPTION.fullmatch(option):
            raise InputError(
                f"{option!r} is not a valid option of an OpenCL compiler",
                hint="options begin with - and a letter, such as -DN=4",
            )
    if sum(map(len, options)) > _MOST_LETTERS:
        raise InputError(
            f"the compiler's options have more than {_MOST_LETTERS} letters", hint="define macros in the source"
        )
    return tuple(dict.fromkeys(options))
