"""The house rules of the tree itself: who may import whom, who may print, what may not be written anywhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "toolchain"

# From the ground up: a module imports only what stands before it.
ORDER = [
    "toolchain",
    "toolchain.errors",
    "toolchain.process",
    "toolchain.files",
    "toolchain.tvm_plugins",
    "toolchain.tensors",
    "toolchain.board",
    "toolchain._zoo_graph",
    "toolchain.zoo",
    "toolchain.flops",
    "toolchain.batchnorm",
    "toolchain.model",
    "toolchain.inputs",
    "toolchain.reference",
    "toolchain._quantize_run",
    "toolchain._quantize_strip",
    "toolchain._quantize_samples",
    "toolchain._quantize_graph",
    "toolchain._quantize_plan",
    "toolchain._quantize_scales",
    "toolchain._quantize_calibrate",
    "toolchain._quantize_write",
    "toolchain._quantize_accuracy",
    "toolchain.quantize",
    "toolchain._container_run",
    "toolchain._image_archive",
    "toolchain._image_recipe",
    "toolchain._image_build",
    "toolchain._image_check",
    "toolchain.containers",
    "toolchain._linker",
    "toolchain.cross",
    "toolchain.elf",
    "toolchain.device_runtime",
    "toolchain.backends._attributes",
    "toolchain.backends.cpu._target",
    "toolchain.backends.cpu._machine",
    "toolchain.backends.cpu._layers",
    "toolchain.backends.cpu._templates.multiply_add",
    "toolchain.backends.cpu._templates.emit",
    "toolchain.backends.cpu._templates.window",
    "toolchain.backends.cpu._templates.conv_plan",
    "toolchain.backends.cpu._templates.conv_cost",
    "toolchain.backends.cpu._templates.conv_writer",
    "toolchain.backends.cpu._templates.conv",
    "toolchain.backends.cpu._templates.dense",
    "toolchain.backends.cpu._templates.depthwise",
    "toolchain.backends.cpu._templates.int8_grids",
    "toolchain.backends.cpu._templates.int8_narrow",
    "toolchain.backends.cpu._templates.int8_emit",
    "toolchain.backends.cpu._templates.int8",
    "toolchain.backends.cpu._templates.int8_depthwise",
    "toolchain.backends.cpu._templates.int8_elementwise",
    "toolchain.backends.cpu._templates.int8_pool",
    "toolchain.backends.cpu._templates.elementwise",
    "toolchain.backends.cpu._templates.pool",
    "toolchain.backends.cpu._templates.winograd_algebra",
    "toolchain.backends.cpu._templates.winograd_plan",
    "toolchain.backends.cpu._templates.winograd",
    "toolchain.backends.cpu._templates",
    "toolchain.backends.cpu._graph.imported",
    "toolchain.backends.cpu._graph.values",
    "toolchain.backends.cpu._graph.kernels",
    "toolchain.backends.cpu._graph.carry",
    "toolchain.backends.cpu._graph.patterns",
    "toolchain.backends.cpu._graph.effects",
    "toolchain.backends.cpu._graph.plans",
    "toolchain.backends.cpu._graph.match",
    "toolchain.backends.cpu._graph.fold",
    "toolchain.backends.cpu._graph.write",
    "toolchain.backends.cpu._graph.int8_constants",
    "toolchain.backends.cpu._graph.int8_match",
    "toolchain.backends.cpu._graph.int8",
    "toolchain.backends.cpu._graph",
    "toolchain.backends.cpu._fallback.expr",
    "toolchain.backends.cpu._fallback.stages",
    "toolchain.backends.cpu._fallback.inline",
    "toolchain.backends.cpu._fallback.loops",
    "toolchain.backends.cpu._fallback.blocks",
    "toolchain.backends.cpu._fallback.flat",
    "toolchain.backends.cpu._fallback.functions",
    "toolchain.backends.cpu._fallback.vector",
    "toolchain.backends.cpu._fallback.turn",
    "toolchain.backends.cpu._fallback.fill",
    "toolchain.backends.cpu._fallback.fuse",
    "toolchain.backends.cpu._fallback.combine",
    "toolchain.backends.cpu._fallback.pack",
    "toolchain.backends.cpu._fallback.plan",
    "toolchain.backends.cpu._fallback.reduce",
    "toolchain.backends.cpu._fallback.split",
    "toolchain.backends.cpu._fallback",
    "toolchain.backends.cpu._offers",
    "toolchain.backends.cpu",
    "toolchain.backends._plugin",
    "toolchain.backends.mali._plugin",
    "toolchain.backends.mali._layout",
    "toolchain.backends.mali._half",
    "toolchain.backends.mali._schedules",
    "toolchain.backends.mali._space",
    "toolchain.backends.mali",
    "toolchain.backends.vta._plugin",
    "toolchain.backends.vta._chains",
    "toolchain.backends.vta.instructions",
    "toolchain.backends.vta._native",
    "toolchain.backends.vta._packing",
    "toolchain.backends.vta.nests",
    "toolchain.backends.vta.config",
    "toolchain.backends.vta.verifier",
    "toolchain.backends.vta._fields",
    "toolchain.backends.vta.layers",
    "toolchain.backends.vta.isa",
    "toolchain.backends.vta._patterns",
    "toolchain.backends.vta.tilings",
    "toolchain.backends.vta._devices",
    "toolchain.backends.vta.stream",
    "toolchain.backends.vta.partition",
    "toolchain.backends.vta.operators",
    "toolchain.backends.vta.disasm",
    "toolchain.backends.vta.recorder",
    "toolchain.backends.vta.simulator",
    "toolchain.backends.vta.estimates",
    "toolchain.backends.vta.schedules",
    "toolchain.backends.vta.transfers",
    "toolchain.backends.vta.accesses",
    "toolchain.backends.vta.lowering",
    "toolchain.backends.vta.kernels",
    "toolchain.backends.vta._functions",
    "toolchain.backends.vta._offers",
    "toolchain.backends.vta",
    "toolchain.backends.vta.listing",
    "toolchain.backends",
    "toolchain.bundle",
    "toolchain.tuning",
    "toolchain.tuning.trials",
    "toolchain.tuning._records_lines",
    "toolchain.tuning.records",
    "toolchain.tuning._records_files",
    "toolchain.tuning._tvm",
    "toolchain.tuning._build_worker",
    "toolchain.tuning._build_crew",
    "toolchain.tuning.builder",
    "toolchain.tuning._builder_adaptor",
    "toolchain.tuning.tasks",
    "toolchain.tuning.schedules",
    "toolchain.tuning.apply",
    "toolchain.tuning._template_search",
    "toolchain.tuning._records_export",
    "toolchain.compiler",
    "toolchain.shell",
    "toolchain._ssh_route",
    "toolchain._ssh_host_keys",
    "toolchain._ssh_login",
    "toolchain._ssh_connect",
    "toolchain._ssh_forward",
    "toolchain.ssh",
    "toolchain._store_scripts",
    "toolchain.lease",
    "toolchain.store",
    "toolchain.remote",
    "toolchain.runner",
    "toolchain.deploy",
    "toolchain.board_server",
    "toolchain.tuning.health",
    "toolchain.tuning._measure_events",
    "toolchain.tuning.modelled",
    "toolchain.tuning._measure_jobs",
    "toolchain.tuning._measure_places",
    "toolchain.tuning._measure_session",
    "toolchain.tuning._measure_worker",
    "toolchain.tuning.measure",
    "toolchain.tuning._measure_adaptor",
    "toolchain.bench",
    "toolchain.report",
    "toolchain.pipeline",
    "toolchain._farm_boards",
    "toolchain._farm_emulation",
    "toolchain._farm_image",
    "toolchain._farm_docker",
    "toolchain._farm_kernel",
    "toolchain.farm",
    "toolchain._farm_protocol",
    "toolchain._farm_tracker",
    "toolchain._farm_keeper_board",
    "toolchain._farm_keeper_desk",
    "toolchain._farm_keeper",
    "toolchain._farm_serving",
    "toolchain._farm_leases",
    "toolchain.doctor",
    "toolchain.compare",
    "toolchain.tuning.scheduler",
    "toolchain.tuning.search",
    "toolchain.tuning.tuner",
    "toolchain.tuning._tune_plot",
    "toolchain.tuning._tune_page",
    "toolchain.tuning.tune_report",
    "toolchain.tuning.hardware",
    "toolchain.tuning.places",
    "toolchain.tuning.session",
    "toolchain._survey_names",
    "toolchain.survey",
    "toolchain._options",
    "toolchain._commands",
    "toolchain._commands_backends",
    "toolchain._commands_containers",
    "toolchain._commands_farm",
    "toolchain._commands_quantize",
    "toolchain._commands_records",
    "toolchain._commands_tuning",
    "toolchain.backends.vta.on_board",
    "toolchain.backends.vta.commands",
    "toolchain._commands_survey",
    "toolchain.cli",
]
# The one step back, taken when a shell is opened: local runs need not wait for paramiko.
LATE = {("toolchain.shell", "toolchain.ssh")}

# Test modules that mirror no module: this one, and that of a helper of the tests.
NO_MIRROR = {"architecture", "light"}

WITHOUT_TVM = [
    "board",
    "containers",
    "bundle",
    "device_runtime",
    "shell",
    "ssh",
    "store",
    "lease",
    "deploy",
    "board_server",
    "bench",
    "report",
    "pipeline",
    "farm",
    "doctor",
    "compare",
    "_farm_leases",
    "_farm_serving",
    "_farm_keeper",
    "tuning.records",
    "tuning.tune_report",
    "_commands_farm",
    "_commands_records",
    "_commands_tuning",
    "_commands_survey",
    "cli",
]
HEAVY = ["numpy", "onnx", "onnxruntime", "tvm", "tvm_ffi", "paramiko", "pydantic", "PIL"]

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
    "an archive unpacked unseen": re.compile(r"\.extractall\(|unpack_archive\("),
    "a pickle loaded": re.compile(r"allow_pickle\s*=\s*True|\bpickle\.loads?\("),
}
SOURCES = {".py", ".pyi", ".cc", ".h", ".c", ".cpp", ".cmake", ".sh", ".toml", ".yml", ".yaml"}
SOURCE_NAMES = {"Makefile", "Dockerfile", "CMakeLists.txt", "run"}
NOT_OURS = {".git", ".venv", "build", "dist", "node_modules", "__pycache__"}

FUNCTION_LINES, MODULE_LINES = 60, 600


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def sources() -> list[Path]:
    found = [path for path in ROOT.rglob("*") if path.suffix in SOURCES or path.name in SOURCE_NAMES]
    return [
        path
        for path in found
        if path.is_file() and path != Path(__file__) and not NOT_OURS & {*path.relative_to(ROOT).parts}
    ]


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def running_code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if is_for_types_only(child):
            for other in child.orelse:
                yield from running_code(other)
        else:
            yield from running_code(child)


def imported(tree: ast.AST) -> set[str]:
    """Name every module that a tree imports; `from a import b` names both a and a.b."""
    found = set()
    for node in running_code(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def neighbours(name: str, tree: ast.AST) -> set[str]:
    """Name the modules of this package that one imports: the most exact name of each."""
    found = imported(tree) & set(ORDER) - {name}
    # `from toolchain import x` loads x; the package itself it always loads.
    return {one for one in found if one == "toolchain" or not any(other.startswith(f"{one}.") for other in found)}


def references(tree: ast.AST) -> Iterator[str]:
    """Yield every name and dotted name that is used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield ast.unparse(node)


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


def prints(tree: ast.AST) -> set[str]:
    return OUTPUT & {*references(tree), *imported(tree)}


def device_words(tree: ast.AST) -> set[str]:
    return {word for word in words(tree) if DEVICE_WORDS.search(word)}


def swallows(tree: ast.AST) -> list[int]:
    """Name the lines of handlers that catch everything and say nothing."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and is_silent(node)]


def is_silent(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    idle = all(isinstance(step, ast.Pass | ast.Continue | ast.Expr) for step in handler.body)
    everything = {"Exception", "BaseException"} & set(references(handler.type))
    return bool(everything) and idle and not any(isinstance(node, ast.Call) for node in ast.walk(handler))


def long_functions(tree: ast.AST, most: int) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if node.end_lineno - node.lineno + 1 > most]


def python(code: str, *argv: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- who imports whom ------------------------------------------------------------------------------------------


def test_every_module_has_its_place():
    assert sorted(ORDER) == sorted(MODULES)


@pytest.mark.parametrize("name", [name for name in ORDER if name in MODULES])
def test_imports_point_one_way(name):
    later = {other for other in neighbours(name, TREES[name]) if ORDER.index(other) > ORDER.index(name)}
    assert later == {other for here, other in LATE if here == name}


@pytest.mark.parametrize(("name", "other"), sorted(LATE))
def test_a_step_back_is_taken_inside_a_function(name, other):
    assert other not in imported(ast.Module([node for node in TREES[name].body if not hasattr(node, "body")], []))


@pytest.mark.parametrize("name", WITHOUT_TVM)
def test_what_works_without_tvm(name):
    code = f"import sys, toolchain.{name}; print([m for m in ('tvm', 'tvm_ffi') if m in sys.modules])"
    assert python(code) == "[]\n"


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


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"toolchain.process"}))
def test_only_process_starts_processes(name):
    assert starts_processes(TREES[name]) == set()


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"toolchain.cli"}))
def test_only_cli_prints_and_exits(name):
    assert prints(TREES[name]) == set()


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("toolchain.backends")])
def test_only_backends_know_their_devices(name):
    assert device_words(TREES[name]) == set()


# --- what is written nowhere -----------------------------------------------------------------------------------


def test_there_are_sources_to_look_at():
    found = {path.relative_to(ROOT).as_posix() for path in sources()}
    assert {"toolchain/ssh.py", "tests/parts.py", "pyproject.toml", "toolchain/runtime/CMakeLists.txt"} <= found


@pytest.mark.parametrize("what", NOWHERE)
def test_written_nowhere(what):
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sources()}
    assert not [f"{path}: {found[0]}" for path, text in texts.items() if (found := NOWHERE[what].search(text))]


def test_no_error_is_swallowed():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources() if path.suffix == ".py"}
    assert not [f"{path}:{line}" for path, tree in trees.items() for line in swallows(tree)]


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("test_*.py")), ids=lambda path: path.stem)
def test_a_test_module_mirrors_a_module(path):
    names = {name.removeprefix("toolchain.").replace(".", "_").lstrip("_") for name in MODULES}
    assert path.stem.removeprefix("test_") in names | NO_MIRROR


@pytest.mark.parametrize("name", MODULES)
def test_size(name):
    assert long_functions(TREES[name], FUNCTION_LINES) == []
    lines = MODULES[name].read_text(encoding="utf-8").count("\n")
    assert lines <= MODULE_LINES


# --- these rules can be broken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import toolchain.board", {"toolchain.board"}),
        ("from toolchain import board, __version__", {"toolchain", "toolchain.board"}),
        ("from toolchain.board import Board", {"toolchain.board"}),
        ("from toolchain.backends import cpu", {"toolchain.backends.cpu"}),
        ("from toolchain.backends import BACKENDS", {"toolchain.backends"}),
        ("def f():\n  from toolchain import cli", {"toolchain", "toolchain.cli"}),
        ("if TYPE_CHECKING:\n  from toolchain import cli\nelse:\n  import toolchain.zoo", {"toolchain.zoo"}),
    ],
)
def test_rule_of_imports(code, expected):
    assert neighbours("toolchain.x", ast.parse(code)) == expected


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
    ("what", "text"),
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
def test_rule_of_what_is_written_nowhere(what, text):
    assert NOWHERE[what].search(text)
