"""A test session that reads nothing of the user: its own home, a chosen environment, and an end for every process.

The product reads a lot from whoever runs it: lists of devices, tuning records, SSH and Docker configuration, agents.
A test that finds a real device there would act on it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from toolchain import files
from toolchain.errors import InputError

FOLDER = "EDGE_TESTS_SESSION"
"""Variable with the folder of the session, which workers and all that tests start inherit."""
REAL_HOMES = "EDGE_TESTS_REAL_HOMES"
"""Variable with the homes of the user, by the environment and by the system's list of users."""

SWITCHES = frozenset(
    f"TOOLCHAIN_{name}"
    for name in (
        # What is installed on this machine, and where its packages come from.
        *("BASE_IMAGE", "DEBIAN_MIRROR", "DEBIAN_SNAPSHOT", "DOCKER", "EXTRA_CA", "NDK", "NDK_SHA", "PIP_INDEX_URL"),
        # How much the tests do, and what they write down.
        *(
            "BOARD_NETWORKS",
            "BOOTS",
            "CHAOS",
            "CUTS",
            "CUTS_SEED",
            "EVERY_STATE",
            "EXACT",
            "EXPORTED",
            "GRAPHS",
            "INTERRUPTS",
            "INTERRUPTS_SEED",
            "KILLS",
            "MALI_ZOO",
        ),
        *("MUTANTS", "MUTANTS_SEED", "NETWORKS", "OFFLINE_KILLS", "OPENCL_CALLS", "OPENCL_CHAINS", "OPENCL_GRAPHS"),
        *("OPERATORS", "OWNER_GATES", "OWNER_PAIRS", "OWNER_RACES", "PICTURES", "PYTEST_KILLS", "PYTEST_LOG"),
        *(
            "PYTEST_TESTS",
            "ROLLOUT",
            "ROWS",
            "ROWS_SEED",
            "SESSIONS",
            "SIGNATURES",
            "SLOT_CUTS",
            "STRICT",
            "TABLE",
            "THIRD_PARTY",
            "TRIALS",
        ),
        *("WHEEL_PROGRAMS", "WRITE_GOLDEN"),
    )
)
"""Variables that are for the tests themselves; any other `TOOLCHAIN_` variable is the user's."""

_KEPT = SWITCHES | {
    *("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "USER", "LOGNAME", "CI", "NO_COLOR", "COLUMNS", "LINES"),
    *("CC", "CXX", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"),
    *("REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
}
_KEPT_PREFIXES = ("LC_", "PIP_", "PYTHON", "PYTEST_", "COV_", "COVERAGE_", "EDGE_TESTS_")

SHARED = ("device", "zig", "vta", "mesa", "mali-cost", "machines", "opencl-runtimes", "third-party", "bytecode")
"""Parts of the cache that take long to make. What lies there is named by a digest of what it was made of."""
_TRIPLES = ("aarch64-linux-gnu", "arm-linux-gnueabihf", "x86_64-linux-gnu")


def begin() -> bool:
    """Give this process, and all that it starts, an environment with nothing of the user in it.

    Returns:
        Whether a session began here. A worker, and a pytest that a test starts, belong to the session that is there.
    """
    if FOLDER in os.environ:
        return False
    shared = _user_cache()
    folder = Path(tempfile.mkdtemp(prefix="edge-tests-"))
    pip_files = _pip_files()
    chosen = environment(os.environ, folder, _homes())
    os.environ.clear()
    os.environ.update(chosen)
    tempfile.tempdir = None  # or it stays what it was before
    folder.chmod(0o755)  # some tests have another user look at what lies in a folder for temporary files
    for name, mode in (("home", 0o700), ("run", 0o700), ("tmp", 0o755)):
        (folder / name).mkdir(mode=mode)
    # Where packages come from is a fact of the machine: without it, no test could fetch what it needs.
    for source in pip_files:
        target = folder / "home" / ".config" / "pip" / "pip.conf"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    if shared is not None:
        _share(shared, files.cache_root())
    if sys.dont_write_bytecode:
        _write_bytecode(files.cache_root() / "bytecode")
    return True


def _write_bytecode(folder: Path) -> None:
    """Keep bytecode elsewhere for a user who wants none in the checkout: compiling all of it takes half a minute.

    Python looks whether it is of the same source, by time and size.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it may be Python's option -B as well
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False


def environment(variables: Mapping[str, str], folder: Path, homes: list[Path]) -> dict[str, str]:
    """Return the environment of a session in a folder, given that of the user."""
    kept = {name: text for name, text in variables.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    if variables.get("DOCKER_HOST", "").startswith("unix://"):
        kept["DOCKER_HOST"] = variables["DOCKER_HOST"]  # an engine of this machine; contexts may name remote ones
    return {
        **kept,
        FOLDER: str(folder),
        REAL_HOMES: os.pathsep.join(map(str, homes)),
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),  # without it, programs look in the user's
        "TMPDIR": str(folder / "tmp"),
        # pytest keeps the folders of the last three sessions where the user can look at them.
        "PYTEST_DEBUG_TEMPROOT": variables.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir(),
    }


def folder() -> Path:
    """Return the folder of the session."""
    return Path(os.environ[FOLDER])


def real_homes() -> list[Path]:
    """Return the user's homes, which no test may touch."""
    return [Path(text) for text in os.environ[REAL_HOMES].split(os.pathsep) if text]


def shared_folders() -> list[Path]:
    """Return the parts of the user's cache that sessions share."""
    return [link.resolve() for name in SHARED if (link := folder() / "home/.cache/edge-toolchain" / name).is_symlink()]


def _homes() -> list[Path]:
    homes = [Path(os.environ["HOME"])] if os.environ.get("HOME") else []
    with contextlib.suppress(KeyError):  # a user without an entry, as containers have
        homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return [home for home in dict.fromkeys(homes) if home != Path(home.anchor)]


def _user_cache() -> Path | None:
    try:
        return files.cache_root().absolute()
    except InputError:
        return None


def _pip_files() -> list[Path]:
    """Return the user's configuration of pip, from which pip takes the last that says something."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return [path for path in (Path("~/.pip/pip.conf").expanduser(), config / "pip" / "pip.conf") if path.is_file()]


def _share(user: Path, ours: Path) -> None:
    """Let links in the session's cache lead to the parts of the user's cache that every session may use.

    What else lies in a cache says something about the user, such as the devices of a farm that runs.
    """
    ours.mkdir(parents=True)
    for name in SHARED:
        (user / name).mkdir(parents=True, exist_ok=True)
        (ours / name).symlink_to(user / name)
    for triple in _TRIPLES:  # two sessions build one after the other
        (ours / f".device-{triple}.lock").symlink_to(user / f".device-{triple}.lock")
