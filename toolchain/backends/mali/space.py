"""How MetaSchedule may write kernels for Mali GPUs."""

from __future__ import annotations

from typing import Any

# Work-groups larger than this do not fit what one core of these GPUs runs at a time, with the registers they need.
_THREADS = [16, 32, 64, 128, 256]
_LEVELS = "SSSRRSRS"
_BINDS = ["blockIdx.x", "vthread.x", "threadIdx.x"]
_INNERMOST = 16
_LANES = 16  # bytes of a register: four floats, eight halves
_UNROLL = [0, 16, 64, 256]


def space(meta_schedule: Any) -> Any:
    """Return the generator of design spaces: tiles in registers, read in vectors from the GPU's memory.

    TVM's own rules for GPUs stage what a work-group reads in local memory. On Mali that is ordinary memory behind the
    same cache, so that a copy to it and a barrier cost and bring nothing.

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
        rule.ParallelizeVectorizeUnroll(-1, _LANES, _UNROLL, unroll_explicit=True),
        rule.AutoBind(max_threadblocks=256, thread_extents=_THREADS),
    ]
    return meta_schedule.space_generator.PostOrderApply(sch_rules=rules, postprocs="cuda", mutator_probs="cuda")


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
