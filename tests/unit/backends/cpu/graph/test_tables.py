from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.cpu.backend import Cpu
from toolchain.models import importer
from toolchain.models import source as model

LOCAL = board.load("local").resolved()
TABLE = np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32)


def compiled(folder, weights, table=TABLE):
    """Return the names of the kernels of a network that reads rows of a table, and the network."""
    nodes = [node("Gather", ["table", "ids"], ["g"]), node("Relu", ["g"], ["y"])]
    proto = nets.model(nodes, [value("ids", (2, 3), "int64")], [value("y", (2, 3, table.shape[1]))], {"table": table})
    backend = Cpu(dataclasses.replace(LOCAL, cores=2).with_precision(weights=weights))
    imported = importer.import_model(model.load(nets.save(proto, folder)))
    module = backend.apply_choices(backend.lower(imported.module), {})
    built = tvm.compile(module, target=backend.target)
    names = {str(variable.name_hint) for variable in module.get_global_vars()}
    return names, relax.VirtualMachine(built, tvm.cpu())["main"]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_rows_of_a_large_table_are_rounded_each_with_its_scale(tmp_path, weights):
    names, network = compiled(tmp_path, weights)
    assert any("packed8_take" in name for name in names)
    ids = np.array([[0, 299, 17], [-1, 5, -300]])
    exact = np.maximum(TABLE[ids], 0)
    difference = np.abs(network(tvm.runtime.tensor(ids)).numpy() - exact).max()
    assert 1e-4 < difference <= np.abs(TABLE).max() / 254 * 1.01


def test_other_tables_stay_as_they_are(tmp_path):
    assert not any("packed" in name for name in compiled(tmp_path, "")[0])
    assert not any("packed" in name for name in compiled(tmp_path, "int8", TABLE[:20])[0])
