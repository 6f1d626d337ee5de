"""The house rules of the tree itself: who may import whom, who may print, what may not be written anywhere."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "toolchain"

# What works on a device, or without a compiler, is there in milliseconds: it never loads TVM, which takes seconds.
WITHOUT_TVM = ("board", "devices", "bundle", "cli", "containers", "device", "farm", "native", "shell", "virtual")
WITHOUT_TVM_TOO = ("records", "rpc.server", "pipeline", "tuning.report", "tuning.build.cluster.member")
WITH_TVM = {"toolchain.cli.vta", "toolchain.farm.boards"}
"""But for those of them that compute with it."""
HEAVY = ["numpy", "rich", "onnx", "onnxruntime", "tvm", "tvm_ffi", "paramiko", "pydantic", "PIL"]

# The rooms that know what a board computes with, the commands that look into its programs, and the list of commands.
KNOW_DEVICES = {"toolchain.backends", "toolchain.cli.mali", "toolchain.cli.vta", "toolchain.cli.commands"}

PROCESS_MODULES = {"subprocess", "pty", "multiprocessing", "popen2", "commands"}
PROCESS_CALLS = re.compile(
    r"os\.(system|popen|fork|forkpty|exec\w+|spawn\w+|posix_spawnp?)|asyncio\.create_subprocess_\w+"
)
OUTPUT = {"print", "exit", "quit", "SystemExit", "click.echo", "click.secho", "sys.exit", "sys.stdout", "sys.stderr"}
DEVICE_WORDS = re.compile(r"(?<![a-z])(mali|vta|avx\w*|neon|opencl)(?![a-z])", re.IGNORECASE)

NOWHERE = {
    "a host key accepted unseen": re.compile(r"AutoAddPolicy|WarningPolicy|StrictHostKeyChecking[= ](no|off)"),
    "a shell between": re.compile(r"shell\s*=\s*True"),
    "work left undone": re.compile(r"\b(TODO|FIXME|XXX)\b"),
    "a test left out": re.compile(r"mark\.(skip|skipif|xfail)\b|pytest\.xfail|unittest\.skip"),
    "an archive unpacked unseen": re.compile(r"\.extractall\((?!.*filter=\"data\")|unpack_archive\("),
    "a pickle loaded": re.compile(r"allow_pickle\s*=\s*True|\bpickle\.loads?\("),
}
SOURCES = {".py", ".pyi", ".cc", ".h", ".c", ".cpp", ".cmake", ".sh", ".toml", ".yml", ".yaml"}
SOURCE_NAMES = {"Makefile", "Dockerfile", "CMakeLists.txt", "run"}
NOT_OURS = {".git", ".venv", "build", "dist", "node_modules", "__pycache__"}

FUNCTION_LINES, MODULE_LINES = 60, 600


def module_name(path: Path) -> str:
    components = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(components[:-1] if components[-1] == "__init__" else components)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module: parsing them takes seconds, which a run of other tests need not spend."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def ancestors(name: str) -> list[str]:
    """Name a module and the packages that it lies in."""
    components = name.split(".")
    return [".".join(components[:count]) for count in range(1, len(components) + 1)]


@functools.cache
def sources() -> dict[Path, str]:
    """Return the text of each source file of ours but this one; folders of other people's are not even entered."""
    paths = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in NOT_OURS]
        paths += [path for name in names if (path := Path(folder, name)).suffix in SOURCES or name in SOURCE_NAMES]
    ours = [path for path in paths if path.is_file() and path != Path(__file__)]
    return {path: path.read_text(encoding="utf-8", errors="replace") for path in ours}


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def running_code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what only type checkers see."""
    waiting = [node]
    while waiting:
        yield (inner := waiting.pop())
        for child in ast.iter_child_nodes(inner):
            waiting += child.orelse if is_for_types_only(child) else [child]


@functools.cache
def imported(tree: ast.AST) -> set[str]:
    """Name every module that a tree imports; `from a import b` names both a and a.b."""
    names = set()
    for node in running_code(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@functools.cache
def references(tree: ast.AST) -> frozenset[str]:
    """Return every name and dotted name that is used."""
    return frozenset(dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute))


def dotted(node: ast.AST) -> str:
    """Return a name as it is written; an attribute of anything but a name, such as a call, begins with a dot."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def docstrings(tree: ast.AST) -> set[ast.AST]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, owners) and node.body]
    return {body[0].value for body in bodies if isinstance(body[0], ast.Expr)}


def words(tree: ast.AST) -> Iterator[str]:
    """Yield every identifier and every text that is not a docstring."""
    left_out = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.value
        for field in ("id", "attr", "arg", "name"):
            if isinstance(value := getattr(node, field, None), str):
                yield value


def starts_processes(tree: ast.AST) -> set[str]:
    modules = {name for name in imported(tree) if name.split(".")[0] in PROCESS_MODULES}
    return modules | {name for name in [*imported(tree), *references(tree)] if PROCESS_CALLS.fullmatch(name)}


def imports_onnx_runtime(tree: ast.AST) -> bool:
    return any(name.split(".")[0] == "onnxruntime" for name in imported(tree))


def prints(tree: ast.AST) -> set[str]:
    return OUTPUT & {*references(tree), *imported(tree)}


def device_words(tree: ast.AST) -> set[str]:
    return {text for text in words(tree) if DEVICE_WORDS.search(text)}


def swallows(tree: ast.AST) -> list[int]:
    """Name the lines of handlers that catch everything and say nothing."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and is_silent(node)]


def is_silent(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    idle = all(isinstance(step, ast.Pass | ast.Continue | ast.Expr) for step in handler.body)
    everything = {"Exception", "BaseException"} & set(references(handler.type))
    return bool(everything) and idle and not any(isinstance(node, ast.Call) for node in ast.walk(handler))


def long_functions(tree: ast.AST, limit: int) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if node.end_lineno - node.lineno + 1 > limit]


def python(code: str, *argv: str) -> str:
    completed = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


# --- who imports whom ------------------------------------------------------------------------------------------


def test_the_contracts_hold():
    """The order of the rooms stands in pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout


def test_an_underscored_module_is_nobody_elses():
    for name, tree in trees().items():
        package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
        hidden = {module for module in imported(tree) & MODULES.keys() if module.rpartition(".")[2].startswith("_")}
        assert {module.rpartition(".")[0] for module in hidden} <= {package}, name


def test_what_works_without_tvm():
    light = [name for name in MODULES if name.removeprefix("toolchain.").split(".")[0] in WITHOUT_TVM]
    names = [name for name in light if name not in WITH_TVM] + [f"toolchain.{name}" for name in WITHOUT_TVM_TOO]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "  importlib.import_module(name)\n"
        "  assert not {'tvm', 'tvm_ffi'} & sys.modules.keys(), name\n"
    )
    python(code, *names)


def test_help_loads_nothing_heavy():
    code = (
        "import sys, toolchain.cli\n"
        "try: toolchain.cli.main()\n"
        "except SystemExit as end: print('exit', end.code, sorted({m.split('.')[0] for m in sys.modules}))\n"
    )
    out = python(code, "--help")
    assert "Usage:" in out
    assert "exit 0" in out
    assert not [name for name in HEAVY if f"'{name}'" in out]


# --- who does what ---------------------------------------------------------------------------------------------


def outside(*rooms: str) -> dict[str, ast.Module]:
    """Return the modules that lie in none of some rooms."""
    return {name: tree for name, tree in trees().items() if not set(rooms) & set(ancestors(name))}


def test_only_process_starts_processes():
    assert not {name: calls for name, tree in outside("toolchain.process").items() if (calls := starts_processes(tree))}


def test_only_cli_prints_and_exits():
    assert not {name: calls for name, tree in outside("toolchain.cli").items() if (calls := prints(tree))}


def test_only_backends_know_their_devices():
    assert not {name: texts for name, tree in outside(*KNOW_DEVICES).items() if (texts := device_words(tree))}


def test_onnx_runtime_comes_through_one_door():
    """Whoever imports it before its telemetry is off lets it report."""
    texts = {path: text for path, text in sources().items() if path.suffix == ".py"}
    importers = {
        path for path, text in texts.items() if "onnxruntime" in text and imports_onnx_runtime(ast.parse(text))
    }
    assert importers == {PACKAGE / "models" / "ort.py"}


# --- what is written nowhere -----------------------------------------------------------------------------------


def test_there_are_sources_to_look_at():
    paths = {path.relative_to(ROOT).as_posix() for path in sources()}
    assert {
        "toolchain/shell/ssh.py",
        "tests/support/parts.py",
        "pyproject.toml",
        "toolchain/runtime/CMakeLists.txt",
    } <= paths


@pytest.mark.parametrize("kind", NOWHERE)
def test_written_nowhere(kind):
    assert not [f"{path}: {match[0]}" for path, text in sources().items() if (match := NOWHERE[kind].search(text))]


def test_no_error_is_swallowed():
    texts = {path: text for path, text in sources().items() if path.suffix == ".py"}
    handling = {path: ast.parse(text) for path, text in texts.items() if "except" in text}
    assert not [f"{path}:{line}" for path, tree in handling.items() for line in swallows(tree)]


def test_size():
    assert not {name: long for name, tree in trees().items() if (long := long_functions(tree, FUNCTION_LINES))}
    assert not [path for path in MODULES.values() if path.read_text(encoding="utf-8").count("\n") > MODULE_LINES]


# --- these rules can be broken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "from subprocess import run",
        "def f():\n  import pty",
        "import os\nos.system('x')",
        "from os import popen",
        "os.execvp('a', [])",
        "from multiprocessing import Process",
        "asyncio.create_subprocess_exec('a')",
    ],
)
def test_rule_of_processes(code):
    assert starts_processes(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    ["import onnxruntime", "def f():\n  from onnxruntime.quantization import x", "import onnxruntime.tools as t"],
)
def test_rule_of_onnx_runtime(code):
    assert imports_onnx_runtime(ast.parse(code))
    assert not imports_onnx_runtime(ast.parse("from toolchain.models.ort import onnxruntime"))


@pytest.mark.parametrize(
    "code",
    [
        "print()",
        "import sys\nsys.exit(1)",
        "from sys import stdout",
        "click.echo('')",
        "raise SystemExit",
        "x = sys.stderr",
    ],
)
def test_rule_of_output(code):
    assert prints(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "x = 'mali'",
        "def use_opencl(): pass",
        "x = f'-mattr=+neon,{y}'",
        "x.vta",
        "f(avx2=1)",
        "import vta",
        "'AVX512'; 'x'",
    ],
)
def test_rule_of_devices(code):
    assert device_words(ast.parse("x = 1\n" + code))


@pytest.mark.parametrize(
    "code", ["'''About mali.'''", "def f():\n  '''The neon way.'''", "# opencl", "x = 'animalistic'"]
)
def test_rule_of_devices_leaves_alone(code):
    assert not device_words(ast.parse(code))


@pytest.mark.parametrize(
    "handler",
    [
        "except: raise",
        "except Exception: pass",
        "except (OSError, Exception): pass",
        "except BaseException: ...",
        "except Exception as e: continue",
    ],
)
def test_rule_of_handlers(handler):
    assert swallows(ast.parse(f"for i in x:\n  try: f()\n  {handler}"))


@pytest.mark.parametrize(
    "handler", ["except OSError: pass", "except Exception as e: log(e)", "except Exception: raise"]
)
def test_rule_of_handlers_leaves_alone(handler):
    assert not swallows(ast.parse(f"try: f()\n{handler}"))


def test_rule_of_sizes():
    assert long_functions(ast.parse("def f():\n" + "  x\n" * 5), 5) == ["f"]
    assert not long_functions(ast.parse("def f():\n" + "  x\n" * 4), 5)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("a host key accepted unseen", "client.set_missing_host_key_policy(paramiko.AutoAddPolicy())"),
        ("a host key accepted unseen", "ssh -o StrictHostKeyChecking=no"),
        ("a shell between", "run(x, shell=True)"),
        ("work left undone", "# TODO: later"),
        ("a test left out", "@pytest.mark.xfail"),
        ("an archive unpacked unseen", "archive.extractall(folder)"),
        ("a pickle loaded", "np.load(path, allow_pickle=True)"),
    ],
)
def test_rule_of_what_is_written_nowhere(kind, text):
    assert NOWHERE[kind].search(text)
