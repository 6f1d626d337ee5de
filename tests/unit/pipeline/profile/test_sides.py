"""What is profiled: a bundle of this machine, or a release of a device, whose files are what its digest says."""

import pytest

from tests.support import deploys, gates
from toolchain.device.lock import Owner
from toolchain.errors import InputError, VerificationError
from toolchain.pipeline.sides import Side, on_device


def test_a_release_has_the_kernels_of_the_bundle_that_it_was(program, tiny, tmp_path):
    bench = gates.bench(tmp_path / "device", program)
    bench.says(tiny)
    with pytest.raises(InputError, match="no such release"):
        on_device("current", bench.device.store)
    deploys.deploy(tiny, bench.program, bench.device.shell, bench.device.store)
    kernels = Side.of(tiny).kernels(bench.device)
    for name in ("current", "1", tiny.digest[:8]):
        side = on_device(name, bench.device.store)
        assert (side.digest, side.kernels(bench.device), side.bundle) == (tiny.digest, kernels, None)
    graph = bench.folder / "store" / "releases" / tiny.digest / "graph.txt"
    with bench.device.store.lock(Owner.here("test")):
        text = graph.read_bytes()
        graph.unlink()
        graph.write_bytes(text[:-1] + b"x")
    with pytest.raises(VerificationError, match="does not match its digest"):
        side.kernels(bench.device)
