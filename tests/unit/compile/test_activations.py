"""Places of activations: each plan is one in which tensors that are needed at the same time do not share memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import vm_build
from tvm.script import relax as R  # noqa: N812 - its name in all of TVM

from toolchain.compile import activations
from toolchain.compile.activations import Lifetime


@R.function
def network(x: R.Tensor((1, 4096), "float32")):
    # Sums and concatenations of several sizes, two views, and two results.
    a = R.add(x, x)
    b = R.concat((a, a, a, a), axis=1)
    c = R.multiply(b, b)
    d = R.reshape(c, (4, 4096))
    e = R.add(d, d)
    f = R.concat((e, e, e, e), axis=1)
    g = R.sum(f, axis=1)
    h = R.reshape(a, (4096,))
    return g, R.add(h, h)


@R.function
def branches(x: R.Tensor((1, 32768), "float32")):
    # As a ResNet begins: a large tensor, and then several at the same time which are smaller.
    a = R.concat((x, x, x, x), axis=1)
    b = R.strided_slice(a, axes=[1], begin=[0], end=[32768])
    c = R.strided_slice(a, axes=[1], begin=[32768], end=[65536])
    d = R.add(b, c)
    e = R.multiply(b, c)
    f = R.subtract(b, c)
    return R.add(R.multiply(d, e), f)


MODULE, ENTRY = tvm.IRModule({"network": network}), "network"
BRANCHES = tvm.IRModule({"branches": branches})


def lowered(module) -> tvm.IRModule:
    target = tvm.target.Target("llvm")
    with target:
        return relax.get_pipeline("default")(relax.transform.LegalizeOps()(module))


def machine(module: tvm.IRModule) -> relax.VirtualMachine:
    """Compile a lowered module, as `executable.py` does."""
    builder = relax.ExecBuilder()
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, module, "bytecode"))
    target = tvm.target.Target("llvm")
    linked = vm_build._ffi_api.VMLink(builder, target, tvm.tirx.build(kernels, target), [], {})
    return relax.VirtualMachine(vm_build.VMExecutable(linked), tvm.cpu())


def plan_of(sizes_and_lives) -> tuple[int, list[int]]:
    lifetimes = {number: Lifetime(*values) for number, values in enumerate(sizes_and_lives)}
    total, places = activations.place(lifetimes)
    return total, [places[number].offset for number in lifetimes]


@pytest.mark.parametrize("seed", range(20))
def test_tensors_that_live_together_have_places_of_their_own(seed):
    draw = np.random.default_rng(seed)
    lives = [(int(draw.integers(1, 1000)), first, first + int(draw.integers(0, 6))) for first in range(30)]
    total, offsets = plan_of(lives)
    for (one, begin), (other, following) in itertools.combinations(zip(lives, offsets, strict=True), 2):
        apart = begin + one[0] <= following or following + other[0] <= begin
        assert apart or not Lifetime(*one).meets(Lifetime(*other))
    assert all(offset % activations.ALIGNMENT == 0 for offset in offsets)
    assert total >= max(offset + life[0] for offset, life in zip(offsets, lives, strict=True))


def test_a_chain_needs_its_two_largest_neighbours():
    total, _ = plan_of([(64, 0, 1), (640, 1, 2), (512, 2, 3), (576, 3, 4)])
    assert total == 640 + 512


def test_small_tensors_lie_side_by_side_where_a_large_one_was():
    """The first activation of a ResNet is four times as large as the next ones."""
    total, offsets = plan_of([(4096, 0, 1), (1024, 1, 4), (1024, 2, 3), (1024, 3, 4)])
    assert total == 4096 + 1024
    assert len(set(offsets)) > 2


@pytest.mark.parametrize("seed", range(20))
def test_a_result_lends_its_memory_until_it_is_filled(seed):
    draw = np.random.default_rng(seed)
    inner = {number: Lifetime(int(draw.integers(1, 1000)), number, number + 1) for number in range(20)}
    results = {
        name: Lifetime(int(draw.integers(1, 3000)), first, 21, is_result=True) for name, first in (("r", 10), ("s", 20))
    }
    total, places = activations.place({**inner, **results})
    assert places.keys() == inner.keys()
    assert total <= activations.place(inner)[0]
    for number, place in places.items():
        end = place.offset + inner[number].size
        if place.result is not None:
            assert not inner[number].meets(results[place.result])
            assert end <= results[place.result].size
        else:
            assert end <= total
        for other, elsewhere in places.items():
            if other != number and elsewhere.result == place.result and inner[other].meets(inner[number]):
                assert end <= elsewhere.offset or elsewhere.offset + inner[other].size <= place.offset


def test_the_bound_counts_what_is_alive_and_the_plan_is_close_to_it():
    module = lowered(MODULE)
    shared = activations.share_storages(module, ENTRY)
    bound = activations.lower_bound(module[ENTRY])
    # 4 x 16384 floats, and 4 x 4096 of those that they are made of, beside `a`.
    assert bound >= 4 * (65536 + 16384 + 4096)
    assert activations.lower_bound(shared[ENTRY]) == bound
    before, after = (activations.planned_bytes(each[ENTRY]) for each in (module, shared))
    assert bound <= after <= before


def test_several_small_tensors_take_the_place_of_a_large_one():
    module = lowered(BRANCHES)
    shared = activations.share_storages(module, "branches")
    bound = activations.lower_bound(module["branches"])
    before, after = (activations.planned_bytes(each["branches"]) for each in (module, shared))
    assert bound <= after <= bound + 4 * 32768
    assert after <= before - activations.LEAST_SAVED
    given = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((1, 32768)).astype("float32"))
    expected, found = (machine(each)["branches"](given).numpy() for each in (module, shared))
    np.testing.assert_array_equal(expected, found)


def test_a_network_computes_the_same_with_its_activations_in_one_storage():
    module = lowered(MODULE)
    function = module[ENTRY]
    size, places = activations.place(activations._lifetimes(function))
    assert sum(place.offset > 0 for place in places.values()) > 1
    assert any(place.result is not None for place in places.values())
    rewritten = activations._rewrite(function, size, places)
    placed = tvm.IRModule({**dict(module.functions_items()), module.get_global_var(ENTRY): rewritten})
    given = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((1, 4096)).astype("float32"))
    expected, found = ([result.numpy() for result in machine(each)[ENTRY](given)] for each in (module, placed))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_module_without_a_better_plan_stays():
    module = lowered(MODULE)
    shared = activations.share_storages(module, ENTRY)
    assert activations.share_storages(shared, ENTRY) is shared
