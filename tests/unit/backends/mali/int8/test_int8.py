"""Networks on bytes: what their kernels call."""

from __future__ import annotations

import tvm

from tests.support import nets, qdq_nets
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, source

KIND = board.load("rk3588").resolved()


def test_kernels_call_the_helper_on_vectors(tmp_path):
    proto = qdq_nets.quantized(qdq_nets.residual(16), tmp_path)
    backend = Mali(KIND)
    module = backend.lower(importer.import_model(source.load(nets.save(proto, tmp_path))).module)
    (host,) = tvm.compile(backend.apply_choices(module, {}), target=backend.target).mod.imports
    text = "".join(one.inspect_source() for one in host.imports)
    assert "edge_dot4_int4(((int4)" in text
    assert text.count("int4 edge_dot4_int4(int4 a, int4 b)") == 4
