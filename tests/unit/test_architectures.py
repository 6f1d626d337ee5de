"""The table of architectures, and the rule that no other module names one."""

from __future__ import annotations

import ast
import dataclasses
import platform
import re
import tomllib

import pytest
from elftools.elf.enums import ENUM_E_MACHINE
from tvm.target import codegen

from tests.support.paths import ROOT
from toolchain import architecture
from toolchain.architecture import AARCH64, ARCHITECTURES, ARMV7L, X86_64
from toolchain.errors import InputError

PACKAGE = ROOT / "toolchain"

# A machine or a triple, of these architectures or others. `aarch64.neon.` is in LLVM's names of intrinsics.
NAMES = re.compile(
    r"aarch64(?!\.neon\.)|arm64|armhf|armv\d|x86_64|amd64|i[3-6]86|riscv|loongarch|linux-(gnu|android|musl)|^arm-?$"
)
TABLE = "architecture.py"


def texts(tree: ast.AST) -> list[str]:
    """Return every string literal that is not a docstring."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, owners)]
    statements = [statement for body in bodies for statement in body if isinstance(statement, ast.Expr)]
    docstrings = {id(statement.value) for statement in statements}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in constants if id(node) not in docstrings]


def named(tree: ast.AST) -> list[str]:
    return [text for text in texts(tree) if NAMES.search(text)]


def test_only_the_table_names_machines_and_triples():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    users = {path.relative_to(PACKAGE).as_posix(): names for path, tree in trees.items() if (names := named(tree))}
    assert users.keys() == {TABLE}, users


@pytest.mark.parametrize(
    "code",
    [
        "machine == 'aarch64'",
        "triple.startswith(('aarch64', 'arm'))",
        "processor.startswith('arm')",
        "f'{machine}-linux-gnu'",
        "{'armv7l': 1}",
        "re.compile('(i[3-6]86|x86_64)')",
        "match machine:\n  case 'riscv64': pass",
    ],
)
def test_rule_of_names(code):
    assert named(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    ["'''For aarch64.'''", "# armv7l", "'llvm.aarch64.neon.sdot'", "'x86-64-v3'", "'an armful'", "AARCH64.machine"],
)
def test_rule_of_names_leaves_alone(code):
    assert not named(ast.parse(f"x = 1\n{code}") if code[0] != "'" * 3 else ast.parse(code))


# --- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.machine)
def test_a_row_is_found_by_each_of_its_names(row):
    assert architecture.of_machine(row.machine) is row
    assert architecture.of_debian(row.debian) is row
    assert architecture.of_triple(row.triple) is row
    for processor in row.processors:
        assert architecture.of_triple(f"{processor}-linux-gnu") is row
        assert architecture.of_triple(f"{processor}-unknown-linux-gnu") is row
    if row.android:
        assert architecture.of_triple(f"{row.android}24") is row


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.machine)
def test_a_row_has_the_names_that_other_programs_have(row):
    assert row.elf_machine in ENUM_E_MACHINE
    assert row.processors & {str(name) for name in codegen.llvm_get_targets()}


@pytest.mark.parametrize("name", ["machine", "triple", "debian", "docker", "elf_machine", "label", "qemu_user"])
def test_no_two_rows_have_the_same_name(name):
    assert len({getattr(row, name) for row in ARCHITECTURES}) == len(ARCHITECTURES)


def test_no_two_rows_have_the_same_processor():
    assert len(frozenset().union(*(row.processors for row in ARCHITECTURES))) == sum(
        len(row.processors) for row in ARCHITECTURES
    )


def test_tables_by_machine_have_supported_machines_alone():
    tables = tomllib.loads((PACKAGE / "backends" / "cpus.toml").read_text(encoding="utf-8"))
    for name in ("plain", "named", "used", "levels", "foreign"):
        assert tables[name].keys() <= architecture.MACHINES.keys(), name
    assert tables["foreign"].keys() == architecture.MACHINES.keys()


def test_the_table_has_this_machine():
    assert architecture.of_machine(platform.machine())


# --- what is not in the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("find", "name", "hint"),
    [
        (architecture.of_machine, "s390x", "supported: aarch64, armv7l, riscv64, x86_64"),
        (architecture.of_machine, "", "supported: aarch64, armv7l, riscv64, x86_64"),
        (architecture.of_machine, "armv6l", "did you mean armv7l? supported: aarch64, armv7l, riscv64, x86_64"),
        (architecture.of_debian, "s390x", "supported: arm64, armhf, riscv64, amd64"),
        (
            architecture.of_triple,
            "s390x-linux-gnu",
            "supported: aarch64-linux-gnu, arm-linux-gnueabihf, riscv64-linux-gnu, x86_64-linux",
        ),
        (architecture.of_triple, "i686-linux-gnu", "supported: "),
        (architecture.of_triple, "aarch64_be-linux-gnu", "supported: "),
        (architecture.of_triple, "armeb-linux-gnueabihf", "supported: "),
        (architecture.of_triple, "aarch64-apple-darwin", "supported: "),
        (architecture.of_triple, "aarch64", "supported: "),
        (architecture.of_triple, "", "supported: "),
    ],
)
def test_anything_else_is_an_error_that_lists_what_is_supported(find, name, hint):
    with pytest.raises(InputError, match=f"'{name}' is not supported") as caught:
        find(name)
    assert caught.value.exit_code == 2
    assert hint in caught.value.hint


# --- what devices report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "bits", "expected"),
    [
        ("aarch64", "64", "aarch64"),
        ("aarch64", "32", "armv7l"),
        ("aarch64", "", "aarch64"),
        ("armv8l", "32", "armv7l"),
        ("armv8l", "", "armv8l"),
        ("armv7l", "32", "armv7l"),
        ("x86_64", "32", "i686"),
        ("i686", "32", "i686"),
        ("s390x", "32", "s390x"),
        ("s390x", "64", "s390x"),
    ],
)
def test_the_machine_of_a_devices_programs(machine, bits, expected):
    assert architecture.user_machine(machine, bits) == expected


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("aarch64", "armv7l", True),
        ("armv8l", "arm", True),
        ("x86_64", "i686", True),
        ("amd64", "x86_64", True),
        ("x86_64", "aarch64", False),
        ("s390x", "s390x", True),
        ("s390x", "riscv32", False),
    ],
)
def test_kernels_that_run_programs_of_two_machines(first, second, same):
    assert architecture.share_kernel(first, second) == architecture.share_kernel(second, first) == same


@pytest.mark.parametrize(
    ("triple", "is_android", "api"),
    [
        ("aarch64-linux-android24", True, 24),
        ("aarch64-linux-android", True, None),
        ("armv7a-linux-androideabi21", True, 21),
        ("aarch64-linux-gnu", False, None),
    ],
)
def test_triples_of_android(triple, is_android, api):
    assert (architecture.is_android(triple), architecture.android_api(triple)) == (is_android, api)


def test_what_the_compilers_of_programs_are_called_with():
    """These are in the key of the cache: another text would build all programs again."""
    targets = [(row.zig_target, row.zig_cpu + row.zig_mode) for row in (AARCH64, ARMV7L, X86_64)]
    assert targets == [
        ("aarch64-linux-gnu.2.28", "generic"),
        ("arm-linux-gnueabihf.2.28", "generic+v7a+thumb_mode"),
        ("x86_64-linux-gnu.2.28", "baseline"),
    ]


def test_a_row_is_one_constant():
    with pytest.raises(dataclasses.FrozenInstanceError):
        AARCH64.machine = "other"
