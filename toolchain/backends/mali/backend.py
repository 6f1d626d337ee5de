"""The backend of Mali GPUs: kernels as OpenCL C, which the driver compiles on the board, and host code through LLVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import tvm
from tvm import relax
from tvm.s_tir import dlight

from toolchain.backends.base import Choice, Tell
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.graph import fold
from toolchain.backends.mali import gpu, images, opencl_functions, opencl_text, winograd
from toolchain.backends.mali.cost import model
from toolchain.backends.mali.half import rescale_layers, sum_in_blocks, summary, to_half, use_plain_loops
from toolchain.backends.mali.int8 import compute_on_bytes
from toolchain.backends.mali.layout import channels_last, use_c_names
from toolchain.backends.mali.operators import fuse_operators, replace_erf, replace_running_sums, use_gpu_kernels
from toolchain.backends.mali.rows import LongRows, Rows
from toolchain.backends.mali.schedules import Tiles, Vectors, remove_single_steps, require_thread_bindings
from toolchain.backends.mali.split import Split
from toolchain.board import Board
from toolchain.tensors import Tensors

Pass = Callable[[tvm.IRModule], tvm.IRModule]

# TVM calls these for each OpenCL kernel that this process compiles.
opencl_functions.register()
opencl_text.register()

_LIMITS = ("max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")

# Work-groups larger than this do not fit what one core of these GPUs runs at a time, with the registers they need.
_THREADS = [16, 32, 64, 128, 256]
_LEVELS = "SSSRRSRS"
_BINDS = ["blockIdx.x", "vthread.x", "threadIdx.x"]
_INNERMOST = 16
_VECTOR_BYTES = 16  # bytes of a register: four floats, eight halves
_UNROLL = [0, 16, 64, 256]


class Mali(Cpu):
    """Mali GPUs through OpenCL: all kernels are TVM's, with a schedule of MetaSchedule or of the rules here."""

    template_names = (winograd.NAME,)
    runtime = "opencl"
    shipped_by_lanes: ClassVar[Mapping[int, str]] = {}

    def __init__(self, board: Board, without: Collection[str] = (), threads: int = 0) -> None:
        super().__init__(board, {*without, *Cpu.template_names}, threads)
        self._tiled = winograd.NAME not in without  # those of the CPU are left out in any case

    @staticmethod
    def space(meta_schedule: Any) -> Any:
        """Return the generator of design spaces: tiles in registers, read in vectors from the GPU's memory.

        TVM's own rules for GPUs stage what a work-group reads in local memory. On Mali that is ordinary memory behind
        the same cache, so that a copy to it and a barrier cost and bring nothing.

        Args:
            meta_schedule: TVM's package of that name.
        """
        rule = meta_schedule.schedule_rule
        tiled = rule.MultiLevelTiling(
            _LEVELS,
            tile_binds=_BINDS,
            max_innermost_factor=_INNERMOST,
            reuse_write=rule.ReuseType("must", [3], "local"),
        )
        rules = [
            _inlined(rule, into_producer=False),
            tiled,
            _inlined(rule, into_producer=True),
            rule.CrossThreadReduction(_THREADS),
            rule.ParallelizeVectorizeUnroll(-1, _VECTOR_BYTES, _UNROLL, unroll_explicit=True),
            rule.AutoBind(max_threadblocks=256, thread_extents=_THREADS),
        ]
        return meta_schedule.space_generator.PostOrderApply(sch_rules=rules, postprocs="cuda", mutator_probs="cuda")

    @cached_property
    def target(self) -> tvm.target.Target:
        """The OpenCL target, whose host is the board's CPU.

        Raises:
            InputError: LLVM does not know the CPU.
        """
        settings = self.board.target
        limits = {name: value for name in _LIMITS if (value := getattr(settings, name))}
        attributes = {"kind": settings.kind, "device": settings.device, **limits}
        if settings.max_threads_per_block:  # passes of TVM read either of two names for the same limit
            attributes["max_num_threads"] = settings.max_threads_per_block
        if self.board.gpu:
            attributes["model"] = gpu.model(self.board.gpu)
        return tvm.target.Target(attributes, host=self.host)

    def rescale_for_half(
        self, module: tvm.IRModule, samples: Callable[[], Sequence[Tensors]], tell: Callable[[str], None]
    ) -> tvm.IRModule:
        """Scale up the inputs of layers that sum up in half precision, where all samples make those small."""
        if not self._sums_in_half:
            return module
        rescaled, layers = rescale_layers(module, samples())
        for layer in layers:
            tell(str(layer))
        return rescaled

    def lower(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of fused kernels, which can be tuned one by one.

        On a board that computes in half precision, convolutions and dense layers read it, and sum up in it if the board
        file says so and they are marked; the inputs and outputs of the network stay as they are.
        """
        with self.target:
            for lowering in self._lowerings:
                module = lowering(module)
        return module

    @property
    def _lowerings(self) -> Sequence[Pass]:
        """The passes that turn an imported network into calls of kernels, in order."""
        transform, half = relax.transform, self.board.target.float16
        reads_images = gpu.means(self.target).images
        return [
            use_c_names,
            transform.DecomposeOpsForInference(),
            transform.CanonicalizeBindings(),
            # Before constants are folded, which would dequantize the weights.
            *([] if half else [compute_on_bytes]),
            fold.fold_constants,
            partial(channels_last, half=half, tiled=self._tiled),
            *([partial(to_half, sums=self._sums_in_half)] if half else []),
            transform.FoldConstant(),
            replace_running_sums,
            replace_erf,
            fuse_operators,
            remove_single_steps,
            winograd.schedule_outputs,
            # Here and not when a kernel is scheduled: tuning has the kernel alone, without the network's constants.
            *([images.mark_arguments] if reads_images else []),
        ]

    def schedule(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule kernels by rules for Mali, and those without a rule with a work-item for each element.

        Raises:
            InputError: No rule can spread a kernel over work-items.
        """
        with self.target:
            schedule = dlight.ApplyDefaultSchedule(
                LongRows(), Split(), Tiles(), Vectors(), Rows(), dlight.gpu.Fallback()
            )
            # DLight changes its argument.
            scheduled: tvm.IRModule = schedule(use_gpu_kernels(module, self.target).clone())
        require_thread_bindings(scheduled)
        return self.add_half_blocks(scheduled)

    def add_half_blocks(self, module: tvm.IRModule) -> tvm.IRModule:
        """Let NaNs through limits, and sum up in half precision if the board file says so."""
        summed = sum_in_blocks(module) if self._sums_in_half else module
        return opencl_functions.cast_infinities(opencl_functions.keep_nan(summed))

    def remarks(self, module: tvm.IRModule) -> Sequence[str]:
        """Say which layers sum up in half precision, if the board file says so."""
        return [summary(module)] if self._sums_in_half else ()

    def on_cpu(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return scheduled kernels with plain loops, which round as those with work-items do."""
        return use_plain_loops(module)

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


def _inlined(rule: Any, *, into_producer: bool) -> Any:
    return rule.AutoInline(
        into_producer=into_producer,
        into_consumer=True,
        inline_const_tensor=True,
        disallow_if_then_else=False,
        require_injective=False,
        require_ordered=False,
        disallow_op=None,
    )
