"""A schedule as JSON and back: its decisions are kept, and MetaSchedule's postprocessing is done anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir.schedule import Trace, _ffi_api

from toolchain import board
from toolchain.backends import BACKENDS
from toolchain.records.lines import UNTUNED
from toolchain.records.metaschedule import meta_schedule

DEFAULT = UNTUNED
"""In place of a trace: the backend's own schedule."""


def register_rules(module: tvm.IRModule, target: tvm.target.Target) -> None:
    """Register the schedule rules that a kernel asks for by name and TVM does not bring, as doing nothing.

    That is what MetaSchedule does with a rule that it does not know, with a warning on stderr for every design space.
    """
    schedule = tvm.s_tir.Schedule(module)
    blocks = [schedule.get(one) for one in schedule.get_child_blocks(schedule.get_sblock("root"))]
    found = {str(one.annotations["schedule_rule"]) for one in blocks if "schedule_rule" in one.annotations}
    for name in (f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys for rule in found):
        if tvm_ffi.get_global_func(name, allow_missing=True) is None:
            tvm_ffi.register_global_func(name, lambda schedule, _block: [schedule])


def space_generator(target: tvm.target.Target) -> Any:
    """Return what makes the design spaces of a kernel: backends that compile for targets of one kind share it."""
    name = next(name for name, kind in board.backends().items() if kind == target.kind.name)
    return BACKENDS[name].space(meta_schedule())


def as_json(schedule: Any) -> list[Any]:
    """Return the decisions of a schedule in the form of MetaSchedule's traces: instructions and decisions.

    The postprocessing is left out: it follows from the decisions, and its index maps have no stable form as JSON.
    """
    plain: list[Any] = _plain(_ffi_api.TraceAsJSON(schedule.trace, True))  # noqa: FBT003 - TVM has no name for it
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return value.value
    if isinstance(value, str):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, Sequence) else value


class Rebuilder:
    """Makes schedules of one kernel again.

    Args:
        module: TIR module of the kernel.
        target: TVM code-generation target.
    """

    def __init__(self, module: tvm.IRModule, target: tvm.target.Target) -> None:
        self._module = module
        # The postprocessing asks the context that it was made for.
        self._context = meta_schedule().TuneContext(
            mod=module, target=target, space_generator=space_generator(target), num_threads=1, rand_state=1
        )

    def from_json(self, trace: Any) -> Any:
        """Return the schedule of a trace as JSON, postprocessing included; None if it does not fit the kernel."""
        return self._postprocessed(lambda schedule: Trace.apply_json_to_schedule(trace, schedule))

    def from_trace(self, trace: Any) -> Any:
        """Return the schedule of a Trace object without its own postprocessing; None if it does not fit."""
        return self._postprocessed(lambda schedule: trace.apply_to_schedule(schedule, remove_postproc=True))

    def _postprocessed(self, step: Any) -> Any:
        schedule = tvm.s_tir.Schedule(self._module, seed=1, debug_mask=0)
        try:
            step(schedule)
            schedule.enter_postproc()
            fits = all(one.apply(schedule) for one in self._context.space_generator.postprocs)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError):  # whatever a step of a schedule trips over
            return None
        return schedule if fits else None
