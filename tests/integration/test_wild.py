"""Models of kinds that were wrong or refused in other people's files, built for this machine and run by the runner."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import judged, nightly, wild
from toolchain.errors import InputError
from toolchain.models import importer, inputs, source

CASES = wild.cases()
UNDEFINED = wild.undefined()


# Most of these faults have a test beside the converter or the kernel that was wrong.
@pytest.mark.parametrize("name", nightly.all_but_every(3, CASES))
def test_it_is_right(name, native, program, tmp_path):
    case, path = CASES[name], tmp_path / f"{name}.onnx"
    onnx.save(case.proto, path)
    read = source.load(str(path), array_shapes={key: array.shape for key, array in case.fed.items()})
    feeds = {spec.name: case.fed[spec.name] for spec in read.inputs} if case.fed else inputs.random(read.inputs, 0)
    computed = judged.computed(importer.import_model(read), feeds, native, program)
    if case.right is None:
        apart = judged.difference(computed, read, feeds)
        assert apart.ok, apart
        return
    [name] = read.output_names
    assert (computed[name].shape, computed[name].dtype) == (case.right.shape, case.right.dtype)
    np.testing.assert_allclose(computed[name], case.right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNDEFINED)
def test_a_value_that_the_standard_does_not_define_is_refused_by_name(name, tmp_path):
    path = tmp_path / f"{name}.onnx"
    onnx.save(UNDEFINED[name], path)
    node = UNDEFINED[name].graph.node[-1]
    with pytest.raises(InputError) as caught:
        importer.import_model(source.load(str(path)))
    assert node.op_type in f"{caught.value.message} {caught.value.details}"
