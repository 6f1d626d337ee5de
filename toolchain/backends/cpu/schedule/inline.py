"""Blocks put into each other: what is cheap to compute where it is used needs no buffer and no loops of its own."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from toolchain.backends.cpu.schedule.block import Block, cost

_CHEAP = 4
_COPY = 1  # a load


def inline(schedule: s_tir.Schedule) -> None:
    """Put blocks without a reduction into those that use them, where that saves time.

    Args:
        schedule: Schedule of a kernel.
    """
    for rv in schedule.get_child_blocks(schedule.get_sblock("root")):
        users = [Block.of(schedule, user) for user in schedule.get_consumers(rv)]
        block = Block.of(schedule, rv)
        if users and not block.reduces and _pays(block, users):
            _tried(schedule, rv)


def _pays(block: Block, users: list[Block]) -> bool:
    price, often = cost(block.values[0]), sum(user.steps for user in users) > block.size
    if any(user.reduces for user in users):
        return not block.guards and (price <= _COPY or not often)
    return price <= _CHEAP or not often


def _tried(schedule: s_tir.Schedule, rv: Any) -> None:
    try:
        schedule.compute_inline(rv)
    except (RuntimeError, ValueError):
        return  # TVM's schedule says what cannot be inlined, and nothing has changed
