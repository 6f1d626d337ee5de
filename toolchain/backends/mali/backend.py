"""The backend of Mali GPUs: kernels as OpenCL C, which the driver compiles on the board, and host code through LLVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import tvm
from tvm import relax
from tvm.s_tir import dlight

from toolchain.backends.base import Choice
from toolchain.backends.base.costs import Tell
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.graph import fold
from toolchain.backends.mali import (
    aligned,  # noqa: F401 - TVM calls it for each kernel that it writes
    functions,
    fusion,
    gauss,
    gpu,
    images,
    limits,
    recurrent,
    running,
    space,
    winograd,
)
from toolchain.backends.mali.cost import model
from toolchain.backends.mali.half import halved, in_blocks, on_cpu, raised, summary
from toolchain.backends.mali.int8 import on_bytes
from toolchain.backends.mali.launched import require_launched
from toolchain.backends.mali.layout import channels_last, with_plain_names
from toolchain.backends.mali.rows import LongRows, Rows
from toolchain.backends.mali.schedules import Tiles, Vectors, without_single_steps
from toolchain.backends.mali.split import Split
from toolchain.board import Board
from toolchain.tensors import Tensors

_LIMITS = ("max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")


class Mali(Cpu):
    """Mali GPUs through OpenCL: all kernels are TVM's, with a schedule of MetaSchedule or of the rules here."""

    template_names = (winograd.NAME,)
    runtime = "opencl"
    shipped_by_lanes: ClassVar[Mapping[int, str]] = {}
    space = staticmethod(space.space)

    def __init__(self, board: Board, without: Collection[str] = ()) -> None:
        super().__init__(board, {*without, *Cpu.template_names})
        self._tiled = winograd.NAME not in without  # those of the CPU are left out in any case

    @cached_property
    def target(self) -> tvm.target.Target:
        """The OpenCL target, whose host is the board's CPU.

        Raises:
            InputError: LLVM does not know the CPU.
        """
        own = self.board.target
        limits = {name: value for name in _LIMITS if (value := getattr(own, name))}
        described = {"kind": own.kind, "device": own.device, **limits}
        if own.max_threads_per_block:  # two words for the same thing: passes ask for either
            described["max_num_threads"] = own.max_threads_per_block
        if self.board.gpu:
            described["model"] = gpu.model(self.board.gpu)
        return tvm.target.Target(described, host=self.host)

    def rescale_for_half(
        self, module: tvm.IRModule, samples: Callable[[], Sequence[Tensors]], tell: Callable[[str], None]
    ) -> tvm.IRModule:
        """Give layers that sum up in half precision greater numbers, where all inputs at hand make those small."""
        if not self._sums_in_half:
            return module
        made, layers = raised(module, samples())
        for one in layers:
            tell(str(one))
        return made

    def lower(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of fused kernels, which can be tuned one by one.

        On a board that computes in half precision, convolutions and dense layers read it, and sum up in it where that
        is asked for and they are marked; the inputs and outputs of the network stay as they are. Which weights may be
        images is known here alone, as what is tuned is a kernel without its network.
        """
        transform, half, sums = relax.transform, self.board.target.float16, self.board.target.half_sums
        with self.target:
            first = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
            prepared = tvm.transform.Sequential(first)(with_plain_names(module))
            folded = fold.fold_constants(prepared if half else on_bytes(prepared))
            transposed = channels_last(folded, half=half, tiled=self._tiled)
            typed = transform.FoldConstant()(halved(transposed, sums=sums) if half else transposed)
            fused = fusion.fused(gauss.as_quotients(running.in_blocks_of_rows(typed)))
        return self._with_images(winograd.scheduled(without_single_steps(fused)))

    def schedule(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule kernels by rules for Mali, and what those do not know with a work-item for each element.

        Raises:
            InputError: A kernel can be spread over work-items by none of them.
        """
        with self.target:
            schedule = dlight.ApplyDefaultSchedule(
                LongRows(), Split(), Tiles(), Vectors(), Rows(), dlight.gpu.Fallback()
            )
            # DLight writes into what it is given.
            scheduled: tvm.IRModule = schedule(recurrent.threaded(module, self.target).clone())
        require_launched(scheduled)
        return self.add_half_blocks(scheduled)

    def add_half_blocks(self, module: tvm.IRModule) -> tvm.IRModule:
        """Let NaNs through limits, and sum up in half precision where that is asked for."""
        summed = in_blocks(module) if self._sums_in_half else module
        return functions.with_typed_arguments(limits.keeping_nan(summed))

    def remarks(self, module: tvm.IRModule) -> Sequence[str]:
        """Say which layers sum up in half precision, where that is asked for."""
        return [summary(module)] if self._sums_in_half else ()

    def on_cpu(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return scheduled kernels with plain loops, which round as those with work-items do."""
        return on_cpu(module)

    def _with_images(self, module: tvm.IRModule) -> tvm.IRModule:
        return images.marked(module) if gpu.means(self.target).images else module

    @property
    def cost_model_name(self) -> str:
        """The GPU that `cost_model` is for; empty where the board file names none."""
        return model.name_of(self.board.gpu) if self.board.gpu else ""

    def cost_model(self, tell: Tell) -> model.Model:
        """Return Mesa's compiler for the board's GPU, as a model of what kernels cost there."""
        return model.of_board(self.board, self.target, tell)

    @property
    def _sums_in_half(self) -> bool:
        return self.board.target.float16 and self.board.target.half_sums

    def apply_choices(self, module: tvm.IRModule, choices: Mapping[str, Choice]) -> tvm.IRModule:  # noqa: ARG002 - none
        """Schedule the kernels that were not tuned."""
        return self.schedule(module)
