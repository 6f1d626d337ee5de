"""Blocks put into each other: what is cheap to compute where it is used needs no buffer and no loops of its own."""

from __future__ import annotations

import contextlib

from tvm import s_tir

from toolchain.backends.cpu.schedule.block import Block, cost

_CHEAP = 4  # operations that are sooner repeated than stored and loaded
_COPY = 1  # a load


def inline(schedule: s_tir.Schedule) -> None:
    """Put blocks without a reduction into those that use them, where that saves time.

    Args:
        schedule: Schedule of a kernel.
    """
    for rv in schedule.get_child_blocks(schedule.get_sblock("root")):
        users = [Block.of(schedule, user) for user in schedule.get_consumers(rv)]
        block = Block.of(schedule, rv)
        if not users or block.reduces:
            continue
        price, is_repeated = cost(block.values[0]), sum(user.steps for user in users) > block.size
        pays = price <= _CHEAP or not is_repeated
        if any(user.reduces for user in users):  # a reduction runs its value for each step: only copies are as cheap
            pays = not block.guards and (price <= _COPY or not is_repeated)
        if pays:
            with contextlib.suppress(
                RuntimeError, ValueError
            ):  # TVM refuses what cannot be inlined, and changes nothing
                schedule.compute_inline(rv)
