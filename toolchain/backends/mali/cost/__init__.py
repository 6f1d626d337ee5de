"""What kernels cost on Mali GPUs that are not here, by the machine code that Mesa's compiler makes of them.

`root` brings the compiler (80 MB, once), and `statistics` says what each kernel of some OpenCL C costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.backends.mali.cost.compiler import GPUS, Gpu, check_options, gpu
from toolchain.backends.mali.cost.kernel_cost import Compiler, KernelCost, costs
from toolchain.backends.mali.cost.root import Root, at_hand, root
from toolchain.backends.mali.cost.sources import Kernel, kernels

__all__ = [
    "GPUS",
    "Compiler",
    "Gpu",
    "Kernel",
    "KernelCost",
    "Root",
    "at_hand",
    "costs",
    "gpu",
    "kernels",
    "root",
    "statistics",
]


def statistics(source: str, name: str, compiler: Root, options: Sequence[str] = ()) -> tuple[KernelCost, ...]:
    """Return what each kernel of some OpenCL C costs.

    Args:
        source: OpenCL C, as TVM writes a module or as people do.
        name: The GPU, such as `g610`.
        compiler: The unpacked compiler.
        options: Of the compiler, beside those of the runtime on boards.

    Raises:
        InputError: There is no such GPU, an option is none, or the source is too long.
        BuildError: The compiler does not work here.
    """
    return costs(Compiler(compiler, gpu(name), check_options(options)), kernels(source))
