"""Detectors with their suppression inside, on the real runner: each scene has the rows that ONNX Runtime finds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import detector_nets, nets
from tests.support.commands import done, parsed

SHARES = (0.0, 0.255, 0.6, 1)


@pytest.mark.parametrize("name", detector_nets.NETS)
def test_rows_and_their_number(name, tmp_path):
    proto = detector_nets.NETS[name]()
    model = nets.save(proto, tmp_path)
    scenes = np.stack([detector_nets.scene(share) for share in SHARES])
    np.save(tmp_path / "x.npy", scenes[2])
    options = ["--board", "local", "--root", tmp_path / "device"]
    done("deploy", model, *options, "--input", tmp_path / "x.npy", "--budget", 0)
    np.savez(tmp_path / "every.npz", x=scenes)
    parsed("run", *options, "--input", tmp_path / "every.npz", "-o", tmp_path / "y.npz")
    outputs = np.load(tmp_path / "y.npz")
    for index, scene in enumerate(scenes):
        for value, expected in zip(proto.graph.output, detector_nets.expected(proto, scene), strict=True):
            got = outputs[value.name][index]
            if name == "regions":  # the others have a fixed number of rows
                (count,) = (outputs[key] for key in outputs.files if key.endswith(".count"))
                assert count[index] == len(expected)
                got = got[: len(expected)]
            np.testing.assert_allclose(got, expected, rtol=1e-6)
