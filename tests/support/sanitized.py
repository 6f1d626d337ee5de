"""The library of applications under the address and undefined-behaviour sanitizers: what `make sanitize` runs.

The whole runtime is compiled for them, TVM's part too, which takes some minutes. What is looked for are faults of
memory and leaks of ours; a release's own kernels are not instrumented.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import cmake

from tests.support import bundles, nets, picture_nets, state_nets, variant_nets
from tests.support.paths import DATA
from toolchain import api, resources
from toolchain.models.request import Model, VariantShapes
from toolchain.native import programs

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined")
RUNS = (("guest.c", ()), ("options.c", ()), ("mixed.cc", ()), ("cycles.c", ("300",)))


def built(folder: Path) -> Path:
    """Compile the library with this machine's compiler."""
    tool = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    definitions = {
        **programs._definitions("x86_64-linux-gnu"),
        "CMAKE_CXX_COMPILER": "g++",
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_CXX_FLAGS_RELWITHDEBINFO": "-O1 -g",
        "CMAKE_CXX_FLAGS": " ".join(("-fno-omit-frame-pointer", *SANITIZERS)),
    }
    words = [f"-D{name}={value}" for name, value in definitions.items()]
    subprocess.run([tool, "-S", resources.RUNTIME, "-B", folder, *words], check=True)
    jobs = str(len(os.sched_getaffinity(0)))
    subprocess.run([tool, "--build", folder, "--parallel", jobs, "--target", "edge_model"], check=True)
    return folder / "library"


def release_with_state(folder: Path, name: str) -> Path:
    """Build a release of a GRU that keeps its state."""
    path = nets.save(state_nets.gru(), folder, f"{name}.onnx")
    return api.build(Model(path, states={"h": "hn"}), folder=folder / name).folder


def release_with_variants(folder: Path) -> Path:
    """Build a release of a network for two sizes of pictures."""
    path = nets.save(variant_nets.pictures(), folder, "pictures.onnx")
    variants = tuple(VariantShapes(f"x{size}", {"x": (1, 3, size, size)}) for size in (12, 20))
    return api.build(Model(path, variants=variants), folder=folder / "pictures").folder


def releases_for_pictures(folder: Path) -> list[Path]:
    """Build a release that finds boxes in a picture, and one that classifies what is in them."""
    networks = {
        "detector": (picture_nets.detector(), "opencv", "yolo:score=0.423"),
        "classifier": (picture_nets.classifier(), "pillow", "topk:k=1"),
    }
    releases = []
    for name, (network, kind, last) in networks.items():
        own = folder / f"{name}-steps"
        own.mkdir()
        (own / "pipeline.toml").write_text(f'pre = ["resize:stretch=32,by={kind}", "scale=1/255"]\npost = ["{last}"]\n')
        releases.append(api.build(Model(nets.save(network, own, f"{name}.onnx")), folder=folder / name).folder)
    return releases


def main() -> int:
    """Run the C programs of the tests on a release; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="toolchain-") as work:
        folder = Path(work)
        library = built(folder / "build")
        release = bundles.build(folder, rows=8, columns=4).folder
        states = [str(release_with_state(folder, name)) for name in ("first", "second")]
        runs = [(source, (str(release), *arguments)) for source, arguments in RUNS]
        runs.append(("variants.c", (str(release_with_variants(folder)),)))
        runs.append(("crops.c", tuple(map(str, releases_for_pictures(folder)))))
        for source, arguments in [*runs, ("steps.c", (*states, str(folder / "state")))]:
            compiler = ["g++", "-std=c++17"] if source.endswith(".cc") else ["gcc", "-std=gnu99"]
            words = [*compiler, "-g", *SANITIZERS, DATA / "sdk" / source, f"-I{resources.RUNTIME / 'library'}"]
            program = folder / source.partition(".")[0]
            linked = [f"-L{library}", "-ledge_model", f"-Wl,-rpath,{library}", "-lpthread"]
            subprocess.run([*words, "-o", program, *linked], check=True)
            code = subprocess.run([program, *arguments], check=False).returncode
            sys.stdout.write(f"{source}: {'clean' if code == 0 else f'exit code {code}'}\n")
            failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
