"""Storages of activations: each plan is one in which tensors that are needed at the same time do not share memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R  # noqa: N812 - its name in all of TVM

from toolchain.compile import activations
from toolchain.compile.activations import Lifetime


@R.function
def network(x: R.Tensor((1, 64), "float32")):
    # Sums and concatenations of several sizes, two views, and two results.
    a = R.add(x, x)
    b = R.concat((a, a, a, a), axis=1)
    c = R.multiply(b, b)
    d = R.reshape(c, (4, 64))
    e = R.add(d, d)
    f = R.concat((e, e, e, e), axis=1)
    g = R.sum(f, axis=1)
    h = R.reshape(a, (64,))
    return g, R.add(h, h)


MODULE, ENTRY = tvm.IRModule({"network": network}), "network"


def lowered(module) -> tvm.IRModule:
    target = tvm.target.Target("llvm")
    with target:
        return relax.get_pipeline("default")(relax.transform.LegalizeOps()(module))


def plan_of(sizes_and_lives) -> tuple[list[int], list[int]]:
    lifetimes = {relax.Var(f"v{number}"): Lifetime(*values) for number, values in enumerate(sizes_and_lives)}
    sizes, storages = activations._assign(lifetimes)
    return sizes, [storages[var] for var in lifetimes]


@pytest.mark.parametrize("seed", range(20))
def test_tensors_that_live_together_have_storages_of_their_own(seed):
    draw = np.random.default_rng(seed)
    lives = [(int(draw.integers(1, 100)), first, first + int(draw.integers(0, 6))) for first in range(30)]
    sizes, storages = plan_of(lives)
    for one, other in itertools.combinations(range(len(lives)), 2):
        if storages[one] == storages[other]:
            assert not Lifetime(*lives[one]).meets(Lifetime(*lives[other]))
    assert all(sizes[storage] >= life[0] for storage, life in zip(storages, lives, strict=True))


def test_a_chain_needs_its_two_largest_neighbours():
    sizes, _ = plan_of([(10, 0, 1), (80, 1, 2), (60, 2, 3), (70, 3, 4)])
    assert sorted(sizes) == [60, 80]


def test_the_bound_counts_what_is_alive_and_the_plan_is_close_to_it():
    module = lowered(MODULE)
    shared = activations.share_storages(module, ENTRY)
    bound = activations.lower_bound(module[ENTRY])
    # 4 x 256 floats, and 4 x 64 of those that they are made of, beside `a`.
    assert bound >= 4 * (1024 + 256 + 64)
    assert activations.lower_bound(shared[ENTRY]) == bound
    before, after = (activations.planned_bytes(each[ENTRY]) for each in (module, shared))
    assert bound <= after <= before


def test_a_module_without_a_better_plan_stays():
    module = lowered(MODULE)
    shared = activations.share_storages(module, ENTRY)
    assert activations.share_storages(shared, ENTRY) is shared
