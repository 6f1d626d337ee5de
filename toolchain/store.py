"""The content-addressed store on a device, driven through a shell: only POSIX sh, coreutils or busybox, and flock.

```
ROOT/lock                     who deploys just now; held by flock, kept alive by a heartbeat
ROOT/blobs/sha256/<digest>    whole, verified, on disk
ROOT/blobs/partial/<digest>   an upload on its way; resumed by the next deploy
ROOT/releases/<digest>/       hard links into blobs/, named by the bundle's digest
ROOT/runners/<digest>/        the programs that run releases
ROOT/inputs/<digest>/         what they were run with
ROOT/generations/<n>          -> ../releases/<digest>, one for each activation
ROOT/current                  -> generations/<n>, replaced by one rename
```
Whatever is killed, `current` names a whole release: data is synced before the rename that makes it visible.
Modelled on OSTree's deployments (https://ostreedev.github.io/ostree/atomic-upgrades/) and Nix profiles.
"""

from __future__ import annotations

import secrets
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.shell import RemoteProcess, Shell

LEASE_S = 30
_HEARTBEAT_S = 5.0
_BUSY, _LOST = 75, 76
_KEPT_INPUTS = 3
_KEPT_RUNNERS = 2
_TOOLS = "sha256sum flock ln mv rm cp sync find stat readlink df cut tail ls touch kill"

_SURVEY = f"""
for tool in {_TOOLS}; do command -v $tool >/dev/null || echo "lacks=$tool"; done
mkdir -p "$ROOT"
echo "machine=$(uname -m)"
echo "kernel=$(uname -sr)"
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1)"
echo "cpu=$(sed -n 's/^\\(model name\\|Hardware\\|Model\\)[^:]*: *//p' /proc/cpuinfo | head -n 1)"
echo "features=$(sed -n 's/^\\(flags\\|Features\\)[^:]*: *//p' /proc/cpuinfo | head -n 1)"
echo "cpus=$(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
echo "memory_kib=$(sed -n 's/^MemTotal: *\\([0-9]*\\).*/\\1/p' /proc/meminfo)"
echo "df=$(df -Pk "$ROOT" | tail -n 1)"
"""

# flock frees the lock when its holder ends, however it ends. A client that vanished behind a dead network would keep
# its holder alive, so the lock is also a lease: without a heartbeat for LEASE_S, the next client ends that holder.
_HOLD = """
mkdir -p "$ROOT"
exec 9>>"$ROOT/lock"
if ! flock -n 9; then
  read -r token pid owner <"$ROOT/lock" || true
  age=$(($(date +%s) - $(stat -c %Y "$ROOT/lock")))
  if [ "$age" -lt {lease} ]; then echo "busy $age $owner"; exit {busy}; fi
  kill -9 "$pid" 2>/dev/null || true
  tries=0
  until flock -n 9; do
    tries=$((tries + 1))
    if [ $tries -gt 50 ]; then echo "busy $age $owner"; exit {busy}; fi
    sleep 0.1
  done
fi
printf '%s %s %s\\n' {token} $$ {owner} >"$ROOT/lock"
echo held
while read -r beat; do touch "$ROOT/lock" 9>&-; done
"""

_LAYOUT = "mkdir -p blobs/sha256 blobs/partial releases runners inputs generations run"

# What a killed deploy may have left: never anything that a link points to.
_SWEEP = f"""
{_LAYOUT}
rm -rf releases/.new-* runners/.new-* inputs/.new-* .trash-* .current-* run/*
current=$(readlink current || true)
number=${{current#generations/}}
for link in generations/*; do
  [ -L "$link" ] || continue
  if [ "${{link#generations/}}" -gt "${{number:-0}}" ]; then rm -f "$link"; fi
done
"""

_EXAMINE = """
for digest in {digests}; do
  blob=blobs/sha256/$digest; partial=blobs/partial/$digest
  if [ -f $blob ]; then
    if [ "$(sha256sum <$blob | cut -c 1-64)" = $digest ]; then echo "have $digest 0"
    else rm -f $blob $partial; echo "damaged $digest 0"; fi
  elif [ -f $partial ]; then echo "partial $digest $(stat -c %s $partial)"
  fi
done
"""

_ACCEPT = """
for digest in {digests}; do
  partial=blobs/partial/$digest
  [ -f $partial ] || continue
  [ "$(sha256sum <$partial | cut -c 1-64)" = $digest ] || {{ rm -f $partial; echo "damaged $digest"; }}
done
"""

# Modes are set before the sync and the sync comes before the rename: after a power cut a blob is whole or absent.
_PUBLISH = """
for digest in {digests}; do [ ! -f blobs/partial/$digest ] || chmod {mode} blobs/partial/$digest; done
{sync}
for digest in {digests}; do [ ! -f blobs/partial/$digest ] || mv blobs/partial/$digest blobs/sha256/$digest; done
"""

# Old coreutils know only the global sync; `sync -f` asks for no more than this file system.
_SYNC = 'sync -f "$ROOT" 2>/dev/null || sync'

_LINK = """
new={kind}/.new-{digest}
rm -rf $new; mkdir $new
{links}
if [ -d {kind}/{digest} ]; then
  for file in $new/*; do
    [ "$file" -ef {kind}/{digest}/${{file##*/}} ] || mv -f "$file" {kind}/{digest}/
  done
  rm -rf $new
else
  {sync}
  mv -T $new {kind}/{digest}
fi
touch {kind}/{digest}
"""

_ACTIVATE = """
current=$(readlink current || true)
number=${{current#generations/}}
if [ "$(readlink "generations/$number" || true)" = ../releases/{digest} ]; then echo same; exit 0; fi
number=$((${{number:-0}} + 1))
{sync}
ln -sfn ../releases/{digest} generations/$number
ln -s generations/$number .current-new
mv -T .current-new current
{sync}
echo new
"""

_ROLL_BACK = """
current=$(readlink current || true)
number=${{current#generations/}}
target=0
for link in generations/*; do
  candidate=${{link#generations/}}
  [ -d "$link" ] || continue
  if [ "$candidate" -lt "${{number:-0}}" ] && [ "$candidate" -gt $target ]; then target=$candidate; fi
done
if [ $target = 0 ]; then echo none; exit 0; fi
ln -s generations/$target .current-new
mv -T .current-new current
{sync}
echo back
"""

_PRUNE = """
current=$(readlink current || true)
number=${{current#generations/}}
for link in generations/*; do
  [ -L "$link" ] || continue
  if [ "${{link#generations/}}" -le $((${{number:-0}} - {keep})) ]; then rm -f "$link"; fi
done
for release in releases/*; do
  [ -d "$release" ] || continue
  used=no
  for link in generations/*; do [ "$(readlink "$link")" != "../$release" ] || used=yes; done
  [ $used = yes ] || {{ mv "$release" .trash-release; rm -rf .trash-release; }}
done
for old in $(ls -t runners | tail -n +{runners}); do rm -rf runners/$old; done
for old in $(ls -t inputs | tail -n +{inputs}); do rm -rf inputs/$old; done
find blobs/sha256 -type f -links 1 -exec rm -f {{}} +
"""

_LIST = """
[ -d generations ] || exit 0
echo "current $(readlink current || true)"
for link in generations/*; do
  [ -d "$link" ] || continue
  target=$(readlink "$link")
  name=$(sed -n 's/^  "name": "\\(.*\\)",$/\\1/p' "$link/manifest.json" | head -n 1)
  echo "generation ${link#generations/} ${target#../releases/} $(stat -c %Y "$link") $name"
done
"""


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself.

    Attributes:
        machine: `uname -m`.
        kernel: Kernel name and release.
        glibc: Version of its C library, or empty if it has another one.
        cpu: Model name from /proc/cpuinfo, which many Arm boards leave empty.
        cpu_features: Its CPU flags.
        cpus: Number of CPUs that processes may use.
        memory_kib: Main memory.
        free_kib: Free space where the store is.
        lacks: Programs that the store needs and the device does not have.
    """

    machine: str
    kernel: str
    glibc: str
    cpu: str
    cpu_features: tuple[str, ...]
    cpus: int
    memory_kib: int
    free_kib: int
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Generation:
    """One activation: its number, the release, when it was made (seconds since 1970), and whether it is current."""

    number: int
    digest: str
    time: int
    name: str
    current: bool


@dataclass(frozen=True)
class BlobState:
    """What a device has of one blob: `have`, `partial` with so many bytes, `damaged` (now removed), or `missing`."""

    state: str
    size: int


class Store:
    """The store of one device. Everything that changes it runs under `lock`."""

    def __init__(self, shell: Shell, root: str) -> None:
        self._shell = shell
        self._token = ""
        home = root.startswith("~/")
        self._set_root = f'ROOT="$HOME"/{shlex.quote(root[2:])}' if home else f"ROOT={shlex.quote(root)}"
        self.root = self._absolute_root()

    def _absolute_root(self) -> str:
        """Ask the device once, so that later paths need no shell to expand them."""
        return self._shell.run(f'{self._set_root}; printf %s "$ROOT"').stdout

    def facts(self) -> DeviceFacts:
        """Ask the device what it is; its root folder is created on the way.

        Raises:
            DeviceError: The root folder cannot be created.
        """
        output = self._run(_SURVEY, what="prepare its folder")
        pairs = [line.split("=", 1) for line in output.splitlines() if "=" in line]
        values = dict(pairs)
        version = values.get("glibc", "").split()
        return DeviceFacts(
            machine=values["machine"],
            kernel=values["kernel"],
            glibc=version[-1] if version and version[-1][0].isdigit() else "",
            cpu=values["cpu"],
            cpu_features=tuple(values["features"].split()),
            cpus=int(values["cpus"] or 1),
            memory_kib=int(values["memory_kib"] or 0),
            free_kib=_free_kib(values["df"]),
            lacks=tuple(value for key, value in pairs if key == "lacks"),
        )

    @contextmanager
    def lock(self, owner: str) -> Iterator[None]:
        """Hold the device for one deploy.

        Args:
            owner: Who holds it, for the message that others get; one line.

        Raises:
            DeviceError: Someone else holds it.
        """
        token = secrets.token_hex(8)
        script = _HOLD.format(lease=LEASE_S, busy=_BUSY, token=token, owner=shlex.quote(owner))
        holder = self._shell.start(f"set -u; {self._set_root}\n{script}")
        try:
            self._await_lock(holder)
            self._token = token
            with _heartbeat(holder):
                yield
        finally:
            self._token = ""
            holder.close()

    def _await_lock(self, holder: RemoteProcess) -> None:
        answer = holder.readline(timeout=30.0).split(maxsplit=2)
        if answer == ["held"]:
            return
        if answer and answer[0] == "busy":
            raise DeviceError(
                f"{self._shell.name} is busy: {answer[2].strip()} is deploying to {self.root}",
                details=f"its last sign of life came {answer[1]} s ago; {LEASE_S} s without one free the device",
                hint="run the command again when that deploy has ended",
            )
        holder.close()
        raise DeviceError(
            f"the lock in {self.root} on {self._shell.name} cannot be taken",
            details=holder.stderr.strip(),
            hint="is the folder writable for this login, and is the disk not full?",
        )

    def sweep(self) -> None:
        """Remove what a killed deploy left: half-made folders and activations that never became current."""
        self._change(_SWEEP)

    def examine(self, digests: Iterable[str]) -> dict[str, BlobState]:
        """Hash the blobs that are there; a damaged one is removed so that it is sent again."""
        wanted = list(dict.fromkeys(digests))
        states = dict.fromkeys(wanted, BlobState("missing", 0))
        for line in self._change(_EXAMINE.format(digests=" ".join(wanted))).splitlines():
            state, digest, size = line.split()
            states[digest] = BlobState(state, int(size))
        return states

    def push(self, source: Path, digest: str, offset: int, progress: Callable[[int], None] | None) -> None:
        """Upload a blob, or the rest of one, to where uploads wait for their check."""
        self._shell.push(source, f"{self.root}/blobs/partial/{digest}", offset=offset, progress=progress)

    def publish(self, digests: Iterable[str], *, executable: Iterable[str] = ()) -> tuple[str, ...]:
        """Check uploaded blobs on the device and make them part of the store.

        Returns:
            The blobs of which the device read other bytes; they are removed, and nothing was published.
        """
        wanted = list(digests)
        lines = self._change(_ACCEPT.format(digests=" ".join(wanted))).splitlines()
        damaged = tuple(line.split()[1] for line in lines)
        if damaged:
            return damaged
        programs = set(executable)
        for mode, group in ((555, programs & set(wanted)), (444, set(wanted) - programs)):
            if group:
                self._change(_PUBLISH.format(digests=" ".join(sorted(group)), mode=mode, sync=_SYNC))
        return ()

    def install(self, kind: str, digest: str, files: Mapping[str, str]) -> str:
        """Make a folder of links to blobs, or mend the one that is there.

        Args:
            kind: `releases`, `runners` or `inputs`.
            digest: Name of the folder.
            files: Digest of the blob for each file name.

        Returns:
            The folder's path on the device.
        """
        links = "\n".join(
            # FAT and some network file systems have no hard links.
            f"ln blobs/sha256/{blob} $new/{shlex.quote(name)} 2>/dev/null"
            f" || cp -p blobs/sha256/{blob} $new/{shlex.quote(name)}"
            for name, blob in sorted(files.items())
        )
        self._change(_LINK.format(kind=kind, digest=digest, links=links, sync=_SYNC))
        return f"{self.root}/{kind}/{digest}"

    def activate(self, digest: str) -> bool:
        """Make a release current, by one rename; return False if it already was."""
        return self._change(_ACTIVATE.format(digest=digest, sync=_SYNC)).startswith("new")

    def roll_back(self) -> Generation:
        """Go back to the activation before the current one.

        Raises:
            DeviceError: There is none.
        """
        if self._change(_ROLL_BACK.format(sync=_SYNC)).strip() == "none":
            raise DeviceError(
                f"there is no earlier release on {self._shell.name}", hint="`toolchain releases` shows what there is"
            )
        return next(generation for generation in self.generations() if generation.current)

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` activations, and every blob that nothing links to any more."""
        self._change(_PRUNE.format(keep=keep, runners=_KEPT_RUNNERS + 1, inputs=_KEPT_INPUTS + 1))

    def generations(self) -> tuple[Generation, ...]:
        """List the activations there are, oldest first."""
        lines = [line.split(" ", 4) for line in self._run(f'cd "$ROOT" 2>/dev/null || exit 0\n{_LIST}').splitlines()]
        current = next((line[1] for line in lines if line[0] == "current"), "")
        found = [
            Generation(int(line[1]), line[2], int(line[3]), line[4], f"generations/{line[1]}" == current)
            for line in lines
            if line[0] == "generation"
        ]
        return tuple(sorted(found, key=lambda generation: generation.number))

    def current(self) -> Generation | None:
        """Return the activation that the device runs, or None where nothing was ever deployed."""
        return next((generation for generation in self.generations() if generation.current), None)

    def read(self, path: str) -> bytes:
        """Return the content of a small text file under the root."""
        return self._run(f'cat "$ROOT"/{shlex.quote(path)}').encode()

    def _change(self, script: str, timeout: float = 600.0) -> str:
        """Run a script that changes the store, unless the lock went to someone else meanwhile."""
        guard = f'read -r token rest <"$ROOT/lock"; [ "$token" = {self._token or "none"} ] || exit {_LOST}'
        return self._run(f'cd "$ROOT"\n{guard}\n{script}', timeout=timeout)

    def _run(self, script: str, *, what: str = "change its store", timeout: float = 60.0) -> str:
        result = self._shell.run(f"set -eu; umask 022; {self._set_root}\n{script}", timeout=timeout, check=False)
        if result.returncode == _LOST:
            raise DeviceError(
                f"this deploy lost its lock on {self._shell.name}",
                details=f"it gave no sign of life for {LEASE_S} s, and another deploy took over",
                hint="run the command again",
            )
        if result.returncode != 0:
            raise DeviceError(
                f"{self._shell.name} cannot {what} ({self._set_root.removeprefix('ROOT=')})",
                details=process.tail(result.stderr or result.stdout),
                hint="is the folder writable for this login, and is the disk not full?",
            )
        return result.stdout


def _free_kib(line: str) -> int:
    """Read the fourth column of `df -Pk`: file system, size, used, available."""
    fields = line.split()
    return int(fields[3]) if len(fields) > 3 and fields[3].isdigit() else 0  # noqa: PLR2004


@contextmanager
def _heartbeat(holder: RemoteProcess) -> Iterator[None]:
    """Send a sign of life to the lock's holder for as long as the block runs."""
    ended = threading.Event()

    def beat() -> None:
        # A holder that is gone shows in the next change to the store; it cannot be reported from a thread.
        with suppress(DeviceError):
            while not ended.wait(_HEARTBEAT_S):
                holder.write("alive\n")

    thread = threading.Thread(target=beat, daemon=True, name="lock-heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=_HEARTBEAT_S)
