"""The headers of ours that stand in for those that TVM's wheel lacks, against what they must agree with."""

from __future__ import annotations

import base64
import subprocess

import numpy as np
import pytest

from tests.support.paths import ROOT

SHIMS = ROOT / "toolchain" / "runtime" / "shims"

# Reads values on stdin, converts them in the way its argument names, and writes them to stdout.
PROGRAM = """
#include <3rdparty/compiler-rt/builtin_fp16.h>

#include <cstdio>
#include <string>

#include "tvm/support/base64.h"

using tvm::support::Stream;

template <typename From, typename To, typename Convert>
void Each(Convert convert) {
  From from;
  while (fread(&from, sizeof(from), 1, stdin) == 1) {
    const To to = convert(from);
    fwrite(&to, sizeof(to), 1, stdout);
  }
}

struct Standard : Stream {
  size_t Read(void* data, size_t size) final { return fread(data, 1, size, stdin); }
  size_t Write(const void* data, size_t size) final { return fwrite(data, 1, size, stdout); }
};

int main(int, char** argv) {
  const std::string what = argv[1];
  Standard standard;
  if (what == "widen") {
    Each<uint16_t, float>(__extendXfYf2__<uint16_t, uint16_t, 10, float, uint32_t, 23>);
  } else if (what == "narrow") {
    Each<float, uint16_t>(__truncXfYf2__<float, uint32_t, 23, uint16_t, uint16_t, 10>);
  } else if (what == "narrow-double") {
    Each<double, uint16_t>(__truncXfYf2__<double, uint64_t, 52, uint16_t, uint16_t, 10>);
  } else if (what == "encode") {
    tvm::support::Base64OutStream out(&standard);
    char byte;
    while (standard.Read(&byte, 1) == 1) static_cast<Stream&>(out).Write(&byte, 1);
    out.Finish();
  } else {
    tvm::support::Base64InStream in(&standard);
    char bytes[7];
    while (const size_t count = static_cast<Stream&>(in).Read(bytes, sizeof(bytes))) {
      fwrite(bytes, 1, count, stdout);
    }
  }
}
"""


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shims")
    (folder / "main.cc").write_text(PROGRAM)
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SHIMS}", f"-I{SHIMS}/tvm/include"]
    flags += [f"-I{SHIMS}/tvm", "-fsanitize=undefined", "-fno-sanitize-recover"]
    subprocess.run(["c++", *flags, folder / "main.cc", "-o", folder / "convert"], check=True, timeout=300)

    def run(conversion: str, data: bytes) -> bytes:
        completed = subprocess.run(
            [folder / "convert", conversion], input=data, capture_output=True, check=True, timeout=60
        )
        return completed.stdout

    return run


def same_bits(values, expected):
    """Compare halves; of what is no number only that it is none."""
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(values), ~numbers)
    np.testing.assert_array_equal(values.view(np.uint16)[numbers], expected.view(np.uint16)[numbers])


def test_every_half_becomes_its_float(convert):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = np.frombuffer(convert("widen", halves.tobytes()), np.float32)
    np.testing.assert_array_equal(values, halves.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(values), np.signbit(halves))


def doubtful() -> np.ndarray:
    """Return all halves, what lies half-way between them and just beside that, and random bits."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    middles = (finite[1:] + finite[:-1]) / 2
    random = np.random.default_rng(5).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    beside = [np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    edges = np.array([65504, 65519.996, 65520, 65536, 1e30, 2**-24, 2**-25, 2**-26, 1e-40, 0.0, -0.0], np.float32)
    return np.concatenate([halves, middles, *beside, random, edges, -edges])


@pytest.mark.parametrize(("conversion", "kind"), [("narrow", np.float32), ("narrow-double", np.float64)])
def test_floats_are_rounded_to_the_nearest_half(convert, conversion, kind):
    with np.errstate(over="ignore", invalid="ignore"):
        values = doubtful().astype(kind)
        expected = values.astype(np.float16)
    same_bits(np.frombuffer(convert(conversion, values.tobytes()), np.float16), expected)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 255, 10_000])
def test_base64(convert, size):
    data = np.random.default_rng(size).bytes(size)
    encoded = convert("encode", data)
    assert encoded == base64.b64encode(data)
    assert convert("decode", encoded) == data
