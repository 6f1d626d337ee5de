from __future__ import annotations

import dataclasses
import os
import platform
import tomllib
from pathlib import Path

import jsonschema
import pytest

from tests.support import paths
from toolchain import architecture, board
from toolchain.board import Board, CoreKind, Gpu, Target
from toolchain.errors import InputError

DATA = paths.DATA / "boards"
VALID = sorted((DATA / "valid").glob("*.toml"))
SHIPPED = sorted((paths.ROOT / "boards").glob("*.toml"), key=lambda path: path.stem)

MISSING = "is missing (every board file must set it)"
NATIVE = "`native` means this machine, but the connection is ssh (write the board's value)"
FOLDER = r"should match pattern '^(~/|/)[^\s'\"\\$`]+$'"

# How the faults of each file in data/boards/invalid begin, in their order.
FAULTS = {
    "date-as-text": ["description: {'time': '2026-01-31'} should be a valid string"],
    "empty": [f"{key}: {MISSING}" for key in ("description", "connection", "machine", "triple", "target")],
    "empty-text": ["description: '' should have at least 1 character"],
    "fraction": ["threads: 1.5 should be a valid integer"],
    "core-kind-without-cores": [f"core_kinds.1.cores: {MISSING}"],
    "compatible-with-space": ["compatible.0: 'vendor, board' should match pattern"],
    "key-twice": ["key-twice.toml: not TOML: Cannot overwrite a value (at line 6"],
    "machine-with-space": ["machine: 'aarch 64' should match pattern '^[A-Za-z0-9_.+-]+$'"],
    "mattr-without-sign": ["target.mattr.1: 'dotprod' should match pattern '^[+-][A-Za-z0-9_.-]+$'"],
    "missing-key": [f"description: {MISSING}"],
    "missing-target": [f"target: {MISSING}"],
    "name with spaces": ["name: 'name with spaces' should match pattern"],
    "name-set": ["name: is not set in the file (remove it: the file's name is the board's name)"],
    "native-machine": [f"machine: {NATIVE}", f"triple: {NATIVE}"],
    "native-mcpu": [f"target.mcpu: {NATIVE}"],
    "negative": ["threads: -1 should be greater than or equal to 0"],
    "not-toml": ["not-toml.toml: not TOML: Expected '=' after a key"],
    "not-utf8": ["not-utf8.toml: not TOML: 'utf-8' codec can't decode byte 0xfc"],
    "number-as-text": ["threads: '4' should be a valid integer"],
    "number-in-list": ["cpu_features.1: 3 should be a valid string"],
    "root-of-everything": [f"root: '/' {FOLDER}"],
    "root-relative": [f"root: 'models' {FOLDER}"],
    "root-with-command": [f"root: '/opt/$(reboot)' {FOLDER}"],
    "root-with-line-end": [f"root: '/opt/models\\n' {FOLDER}"],
    "root-with-space": [f"root: '/opt/my models' {FOLDER}"],
    "opencl-without-backend": [
        "target.kind: 'opencl' is not a target of backend cpu (write 'llvm' or backend = 'mali')"
    ],
    "several-faults": [
        f"description: {MISSING}",
        f"connection: {MISSING}",
        "machine: 64 should be a valid string",
        "connecton: unknown key (did you mean connection?)",
    ],
    "target-as-array": ["target: [{'mcpu': 'cortex-a53'}] should be an object"],
    "target-as-text": ["target: 'llvm' should be an object"],
    "text-as-list": ["cpu_features: 'asimd' should be a valid array"],
    "too-large": ["keep: 101 should be less than or equal to 100"],
    "too-many-cores": ["cores: 8 is more than the 6 of core_kinds (correct one of them)"],
    "too-many-threads": ["threads: 8 is more than the 6 of core_kinds (correct one of them)"],
    "truth-as-number": ["threads: True should be a valid integer"],
    "triple-misspelt": ["triple: 'aarch64-linux-gun' is not a GNU triple of Linux (did you mean aarch64-linux-gnu?)"],
    "triple-musl": ["triple: 'aarch64-linux-musl' uses musl, and one board type serves"],
    "triple-of-another-machine": [
        "triple: 'aarch64-linux-gnu' does not match the machine 'armv7l' (write arm-linux-gnueabihf)"
    ],
    "triple-of-unknown-processor": ["triple: the triple 's390x-linux-gnu' is not supported (write aarch64-linux-gnu)"],
    "triple-without-system": ["triple: 'x86_64' is not a GNU triple of Linux"],
    "unknown-machine": [
        "machine: the machine 's390x' is not supported (supported: aarch64, armv7l, riscv64, x86_64)",
        "triple: the triple 's390x-linux-gnu' is not supported (write aarch64-linux-gnu or arm-linux-gnueabihf or",
    ],
    "unknown-key": ["thread: unknown key (did you mean threads?)"],
    "unknown-key-in-target": ["target.mcpuu: unknown key (did you mean mcpu?)"],
    "unknown-key-without-likeness": ["colour: unknown key (known keys: description, connection, machine,"],
    "unknown-table": ["network: unknown key (known keys: description"],
    "wrong-choice": ["connection: 'shh' should be 'local' or 'ssh' (did you mean ssh?)"],
    "wrong-choice-without-likeness": ["backend: 'abacus' is not a compiler backend (known backends: cpu, mali"],
    "warp-too-wide": ["target.thread_warp_size: 256 should be less than or equal to 128"],
    "wrong-backend": ["backend: 'malli' is not a compiler backend (did you mean mali?)"],
    "half-sums-alone": ["target.half_sums: has no effect without float16 (add float16 = true)"],
    "two-precisions": ["target.bfloat16: cannot be combined with float16 (remove one of them)"],
    "weights-in-bfloat16": ["target.weights: cannot be combined with float16 and bfloat16 (remove one of them)"],
    "gpu-misspelt": ["gpu.name: there is no cost model of the GPU 'g61o' (did you mean g610?)"],
    "gpu-without-model": [
        "gpu.name: there is no cost model of the GPU 'adreno' (known GPUs: t860, g72, g52, g57, g610; without [gpu]"
    ],
    "wrong-kind": ["target.kind: 'llvmm' is not a target of backend cpu (write 'llvm')"],
}

# What a JSON Schema sees nothing of: the file's own name, and rules that join several keys. The last one is this
# validator's: in Python's patterns, unlike in those of JSON Schema, $ also matches before a line end.
BEYOND_SCHEMA = {
    "half-sums-alone",
    "name with spaces",
    "native-machine",
    "native-mcpu",
    "opencl-without-backend",
    "too-many-cores",
    "too-many-threads",
    "root-with-line-end",
    "two-precisions",
    "weights-in-bfloat16",
    *(name for name in FAULTS if name.startswith("triple-")),
}
NOT_TOML = {"key-twice", "not-toml", "not-utf8"}
SCHEMA_FAULTS = sorted(FAULTS.keys() - BEYOND_SCHEMA - NOT_TOML)


def invalid(name: str) -> Path:
    return DATA / "invalid" / f"{name}.toml"


def schema_accepts(path: Path) -> bool:
    # Through JSON, as an editor would see it: TOML's dates have no JSON type of their own.
    return jsonschema.Draft202012Validator(board.schema()).is_valid(tomllib.loads(path.read_text(encoding="utf-8-sig")))


def test_every_invalid_file_has_its_row():
    assert sorted(path.stem for path in invalid("x").parent.iterdir()) == sorted(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_an_invalid_file(name):
    kind, faults = board.check(invalid(name))
    texts = [str(fault) for fault in faults]
    assert kind is None
    assert len(texts) == len(FAULTS[name]), texts
    for text, start in zip(texts, FAULTS[name], strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize("name", FAULTS)
def test_loading_an_invalid_file_shows_every_fault_and_how_to_check_again(name):
    with pytest.raises(InputError, match=rf"board file {name}\.toml has {len(FAULTS[name])} fault") as caught:
        board.load(str(invalid(name)))
    assert len(caught.value.details.splitlines()) == len(FAULTS[name])
    assert f"toolchain board check {invalid(name)}" in caught.value.hint


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_valid_file(path):
    assert board.check(path)[1] == []
    assert board.load(str(path)).name == path.stem


def test_what_a_file_leaves_out():
    assert board.load(str(DATA / "valid" / "least.toml")) == Board(
        name="least",
        description="a board",
        connection="ssh",
        machine="aarch64",
        triple="aarch64-linux-gnu",
        target=Target(kind="llvm", mcpu="generic", mattr=()),
        backend="cpu",
        cpu_features=(),
        threads=0,
        root="~/.local/share/edge-toolchain",
        keep=3,
        emulated=False,
    )


def test_what_a_file_may_say():
    assert board.load(str(DATA / "valid" / "everything.toml")) == Board(
        name="everything",
        description="a board whose file says everything",
        connection="ssh",
        machine="aarch64",
        triple="aarch64-linux-gnu",
        target=Target(
            kind="opencl",
            device="mali",
            mcpu="cortex-a76",
            mattr=("+neon", "+dotprod", "-sve"),
            max_threads_per_block=512,
            max_shared_memory_per_block=32768,
            thread_warp_size=16,
            float16=True,
            half_sums=True,
        ),
        backend="mali",
        toolchain="container",
        image="arm",
        compiler="aarch64-linux-gnu-g++-12",
        cpu_features=("asimd", "asimdhp"),
        cores=4,
        threads=4,
        core_kinds=(CoreKind("cortex-a76", 4), CoreKind("cortex-a55", 4)),
        compatible=("vendor,board", "vendor,chip"),
        cpu_names=("A CPU", "Another CPU"),
        root="/opt/models",
        keep=5,
        emulated=True,
        gpu=Gpu(name="g610", cores=4, clock_mhz=1000),
    )


def test_the_file_that_says_everything_does():
    table = tomllib.loads((DATA / "valid" / "everything.toml").read_text())
    assert {"name", *table} == {field.name for field in dataclasses.fields(Board)}
    assert set(table["target"]) == {field.name for field in dataclasses.fields(Target)}
    assert set(table["gpu"]) == {field.name for field in dataclasses.fields(Gpu)}


def test_a_gpu_may_be_named_in_full():
    kind = board.load(str(DATA / "valid" / "gpu-in-full.toml"))
    assert kind.gpu == Gpu(name="g610", cores=4, clock_mhz=1000)


def test_resolved_takes_this_machine_for_native():
    kind = board.load(str(DATA / "valid" / "this-machine.toml")).resolved()
    assert (kind.machine, kind.triple) == (platform.machine(), architecture.of_machine(platform.machine()).triple)


def test_resolved_on_a_machine_that_is_not_supported(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(InputError, match="the machine 's390x' is not supported") as caught:
        board.load(str(DATA / "valid" / "this-machine.toml")).resolved()
    assert caught.value.hint == "supported: aarch64, armv7l, riscv64, x86_64"
    elsewhere = board.load(str(DATA / "valid" / "everything.toml"))
    assert elsewhere.resolved() == elsewhere


def test_resolved_takes_a_triple_that_a_file_names():
    kind = dataclasses.replace(board.load(str(DATA / "valid" / "this-machine.toml")), triple="aarch64-poky-linux")
    assert kind.resolved().triple == "aarch64-poky-linux"


def test_resolved_counts_the_cores_of_this_machine_alone():
    kind = board.load(str(DATA / "valid" / "this-machine.toml"))
    assert kind.cores == 0
    assert kind.resolved().cores == os.cpu_count()
    assert dataclasses.replace(kind, cores=3).resolved().cores == 3
    assert dataclasses.replace(kind, connection="ssh").resolved().cores == 0


@pytest.mark.parametrize(
    ("name", "cpus", "used"), [("rk3588-cpu", 8, 4), ("rk3399-cpu", 6, 0), ("rpi5", 4, 0), ("ryzen-v1000", 8, 0)]
)
def test_the_cores_that_a_board_has_and_uses(name, cpus, used):
    kind = board.load(name)
    assert (kind.cpus, kind.threads) == (cpus, used)


def test_a_warning_of_threads_on_slow_cores():
    rk3588 = board.load("rk3588-cpu")
    assert not rk3588.warning_of_threads(0)
    assert not rk3588.warning_of_threads(4)
    assert rk3588.warning_of_threads(6) == (
        "6 threads: board rk3588-cpu uses 4, on its 4 cortex-a76; the others run on its 4 cortex-a55, which are slower"
    )
    assert not board.load("rk3399-cpu").warning_of_threads(6)
    assert not board.load("rpi5").warning_of_threads(6)


def test_resolved_changes_nothing_else():
    before = board.load(str(DATA / "valid" / "everything.toml"))
    assert before.resolved() == before


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_board(path):
    kind = board.load(path.stem)
    assert kind.name == path.stem
    assert schema_accepts(path)


@pytest.mark.parametrize(
    ("name", "device", "machine"),
    [
        ("vta-sim", "vta-sim", platform.machine()),
        ("vta-sim-x86_64", "vta-sim", "x86_64"),
        ("vta-sim-aarch64", "vta-sim", "aarch64"),
        ("vta-sim-armv7", "vta-sim", "armv7l"),
        ("pynq-z1", "vta-pynq-z1", "armv7l"),
        ("ultra96", "vta-ultra96", "aarch64"),
    ],
)
def test_boards_with_a_vta(name, device, machine):
    kind = board.load(name).resolved()
    assert (kind.backend, kind.target.device, kind.machine) == ("vta", device, machine)
    assert kind.emulated == (device == "vta-sim"), "times of a simulated array are marked"
    assert kind.connection == ("local" if name == "vta-sim" else "ssh")
    assert kind.cores > 0


def test_names_are_the_shipped_files():
    assert board.names() == [path.stem for path in SHIPPED]
    assert "local" in board.names()


def test_unknown_board_gets_a_suggestion():
    with pytest.raises(InputError, match="there is no board 'locl'") as caught:
        board.load("locl")
    assert caught.value.hint == "did you mean local?"
    assert "local" in caught.value.details


@pytest.mark.parametrize("name", ["nothing-like-it", "no/such/file.toml"])
def test_unknown_board_without_likeness(name):
    with pytest.raises(InputError, match=f"there is no board '{name}'") as caught:
        board.load(name)
    assert "toolchain board list" in caught.value.hint


def test_a_folder_is_no_board(tmp_path):
    (tmp_path / "x.toml").mkdir()
    with pytest.raises(InputError, match="there is no board"):
        board.load(str(tmp_path / "x.toml"))


def test_checking_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        board.check(tmp_path / "missing.toml")


def test_boards_folder_can_be_named(monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(DATA / "valid"))
    assert board.names() == [path.stem for path in VALID]
    assert board.load("everything").threads == 4


def test_a_named_boards_folder_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"no folder of board files at .*none") as caught:
        board.names()
    assert "TOOLCHAIN_BOARDS" in caught.value.hint


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(board.schema())


def test_schema_names_each_kind_of_target_once():
    assert board.schema()["$defs"]["Target"]["properties"]["kind"]["enum"] == ["llvm", "opencl"]


def test_schema_describes_every_key():
    properties = board.schema()["properties"]
    assert "name" not in properties
    assert all(key.get("description") or "$ref" in key for key in properties.values())


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_schema_accepts(path):
    assert schema_accepts(path)


@pytest.mark.parametrize("name", SCHEMA_FAULTS)
def test_schema_rejects(name):
    assert not schema_accepts(invalid(name))


def test_a_users_own_boards_are_found_by_their_names(monkeypatch, tmp_path):
    """Beside the toolchain's, which go first; a named folder stands for both."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "edge-toolchain" / "boards"
    folder.mkdir(parents=True)
    text = (board.boards_folder() / "rpi4.toml").read_text()
    (folder / "mine.toml").write_text(text.replace("Raspberry Pi 4", "My own"))
    (folder / "rpi4.toml").write_text("not a board")
    assert board.load("mine").description.startswith("My own")
    assert board.load("rpi4").description.startswith("Raspberry Pi 4")
    assert board.names().count("rpi4") == board.names().count("mine") == 1
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(DATA / "valid"))
    assert board.users_folder() == DATA / "valid"
    assert "mine" not in board.names()
