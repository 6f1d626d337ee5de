"""The content-addressed store on a device, driven through a shell: only POSIX sh, coreutils or busybox, and flock.

```
ROOT/lock                     who works on the device just now; held by flock, kept alive by a heartbeat
ROOT/lock.within              who does so inside of a lock that was taken for it, as by `farm lock NAME -- CMD`
ROOT/blobs/sha256/<digest>    whole, verified, on disk
ROOT/blobs/partial/<token>/   uploads on their way, in a folder of each deploy's own; continued by the next deploy
ROOT/releases/<digest>/       hard links into blobs/, named by the bundle's digest
ROOT/runners/<digest>/        the programs that run releases
ROOT/libraries/<digest>/      what applications are linked with
ROOT/lib                      -> libraries/<digest>
ROOT/unchecked/<digest>       marks a release whose outputs nobody has compared with a reference
ROOT/servers/<digest>/        the programs that candidates are measured with
ROOT/inputs/<digest>/         what releases were run with
ROOT/run/<token>/             outputs and times of a run, for as long as it takes
ROOT/generations/<n>          -> ../releases/<digest>, one for each activation
ROOT/current                  -> generations/<n>, replaced by one rename
ROOT/floors/<model>           the least sequence of a model that the device takes; see `trust`
ROOT/trial                    a release that is current, and whose application was not seen to be well yet
ROOT/trial.log                what the last trial said
ROOT/recover                  takes such a release back, for the application's unit to run before each start
```
Whatever is killed, `current` names a whole release: data is synced before the rename that makes it visible.
Modelled on OSTree's deployments (https://ostreedev.github.io/ostree/atomic-upgrades/) and Nix profiles.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolchain import process
from toolchain.device import lock as lease
from toolchain.device import scripts
from toolchain.device.lock import Lease, Owner
from toolchain.device.waiting import Patience, Waited
from toolchain.errors import DeviceError
from toolchain.shell import Shell
from toolchain.shell.protocol import ending_of
from toolchain.shell.reminder import reminding

_DIGEST_CHARACTERS = 64
_SHOWN = 1000
_STATES = frozenset({"have", "partial", "damaged"})
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_NUMBER = re.compile(r"[0-9]{1,15}")
_GENERATION = re.compile(r"generation ([0-9]{1,9}) ([0-9a-f]{64}) (-?[0-9]{1,12}) (.*)")
_WITH_32_BITS = {"aarch64": "armv7l", "armv8l": "armv7l", "x86_64": "i686"}
_RECOVERED = re.compile(r"recovered [0-9]+ [0-9]+ [0-9]+")


def user_machine(machine: str, bits: str) -> str:
    """Return what a device's programs are made for, in the words of `uname -m`.

    A kernel of 64 bits runs a whole system of 32 bits as well, as Raspberry Pi OS did for years: `uname -m` names the
    kernel's machine, and no program for it starts.

    Args:
        machine: What `uname -m` says.
        bits: Bits of the addresses in the device's shell: 32, 64, or nothing where that could not be seen.
    """
    return _WITH_32_BITS.get(machine, machine) if bits == "32" else machine


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself.

    Attributes:
        machine: What its programs are made for; see `user_machine`.
        kernel: Kernel name and release.
        glibc: Version of its C library, or empty if it has another one.
        cpu: Model name from /proc/cpuinfo, which many Arm boards leave empty.
        cpu_features: Its CPU flags.
        cpus: Number of CPUs that processes may use.
        memory_kib: Main memory.
        free_kib: Free space where the store is.
        musl: Whether its C library is musl.
        signed_only: Whether it takes signed releases only; see `trust`.
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
    musl: bool = False
    signed_only: bool = False


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
    """The store of one device. Everything that changes it runs under `lock`.

    Args:
        shell: The device.
        root: Folder on it, perhaps from `~/` on.
        tell: Told what was put right on the device before the work that was asked for.
        patience: How long others may be at work on the device before this is refused; not at all by default.
    """

    def __init__(
        self,
        shell: Shell,
        root: str,
        progress: Callable[[str], None] = lambda _line: None,
        patience: Patience | None = None,
    ) -> None:
        self._shell = shell
        self._report = progress
        self._patience = patience or Patience()
        self._lease: Lease | None = None
        self._root = ""
        home = root.startswith("~/")
        self._set_root = f'ROOT="$HOME"/{shlex.quote(root[2:])}' if home else f"ROOT={shlex.quote(root)}"

    @property
    def name(self) -> str:
        """The device's name."""
        return self._shell.name

    @property
    def root(self) -> str:
        """The store's absolute path on the device."""
        if not self._root:
            self.facts()
        return self._root

    def facts(self) -> DeviceFacts:
        """Ask the device what it is; its root folder is created on the way.

        Raises:
            DeviceError: The root folder cannot be created, or the device does not say what it is.
        """
        output = self._run(scripts.SURVEY)
        pairs = [line.split("=", 1) for line in output.split("\n") if "=" in line]
        values = dict(pairs)
        if not values.get("root") or not values.get("machine"):
            raise self._invalid_answer("a description of itself", output)
        self._root = values["root"]
        version = values.get("glibc", "").split()
        return DeviceFacts(
            machine=user_machine(values["machine"], values.get("bits", "")),
            kernel=values.get("kernel", ""),
            glibc=version[-1] if version and _VERSION.fullmatch(version[-1]) else "",
            cpu=values.get("cpu", ""),
            cpu_features=tuple(values.get("features", "").split()),
            cpus=_number(values.get("cpus", "")) or 1,
            memory_kib=_number(values.get("memory_kib", "")),
            free_kib=_free_kib(values.get("df", "")),
            lacks=tuple(value for key, value in pairs if key == "lacks"),
            musl="musl" in version,
            signed_only="signed_only" in values,
        )

    @contextmanager
    def lock(self, owner: Owner, *, within: str = "", lost: Callable[[], None] = lambda: None) -> Iterator[Lease]:
        """Hold the device for one piece of work, be it a deploy or hours of measuring; see `lease.hold`.

        A release that is on trial is taken back first: whoever tried it would hold the lock if it were still there.
        Within a lock that this store holds it is no other lock: the work belongs to that one's owner.

        Args:
            owner: Who holds it, for the message that others get.
            within: The token of those who may work inside of it; see `lease.WITHIN`.
            lost: Called by another thread when the lock is lost.

        Raises:
            BusyError: Someone else holds it, for longer than we have the patience to wait.
            DeviceError: The root cannot be written.
        """
        if self._lease is not None:
            yield self._lease
            return
        with contextlib.ExitStack() as stack:
            held_lease = self._patience.get(
                lambda: stack.enter_context(lease.hold(self._shell, self._set_root, owner, within=within, lost=lost))
            )
            self._lease = held_lease
            try:
                if held_lease.on_trial:
                    self.recover()
                yield held_lease
            finally:
                self._lease = None

    def check_free(self) -> None:
        """See that nobody holds the lock, without taking it, or wait until that is so.

        Raises:
            BusyError: Somebody does, for longer than we have the patience to wait.
        """
        if self._lease is None:
            self._patience.get(lambda: lease.check_free(self._shell, self._set_root))

    @property
    def waited(self) -> tuple[Waited, ...]:
        """What was waited for so far, since others were at work on the device."""
        return self._patience.waited

    def sweep(self) -> None:
        """Remove what a killed deploy left: half-made folders and activations that never became current."""
        self._change(scripts.SWEEP)

    def examine(self, digests: Iterable[str], size: int = 0) -> dict[str, BlobState]:
        """Hash the blobs that are there; a damaged one is removed so that it is sent again.

        Args:
            digests: The blobs.
            size: Bytes of all of them.
        """
        unique = list(dict.fromkeys(digests))
        states = dict.fromkeys(unique, BlobState("missing", 0))
        for state, digest, stored in self._rows(scripts.examine(unique), columns=3, size=size):
            if digest in states and state in _STATES:
                states[digest] = BlobState(state, _number(stored))
        return states

    def push(self, source: Path, digest: str, offset: int, progress: Callable[[int], None] | None) -> None:
        """Upload a blob, or the rest of one, to where uploads wait for their check."""
        target = f"{self.root}/blobs/partial/{self._require_lease.token}/{digest}"
        self._shell.push(source, target, offset=offset, progress=progress)

    def publish(self, digests: Iterable[str], *, executable: Iterable[str] = (), size: int = 0) -> tuple[str, ...]:
        """Check uploaded blobs on the device and make them part of the store.

        Args:
            digests: The blobs.
            executable: Those of them that are programs.
            size: Bytes of all of them.

        Returns:
            The blobs of which the device read other bytes; they are removed, and nothing was published.
        """
        uploaded = list(digests)
        if not uploaded:
            return ()
        damaged = tuple(row[1] for row in self._rows(scripts.accept(uploaded), columns=2, size=size))
        if damaged:
            return damaged
        programs = set(executable)
        for mode, group in ((555, programs & set(uploaded)), (444, set(uploaded) - programs)):
            if group:
                self._change(scripts.publish(sorted(group), mode), size)
        return ()

    def install(self, kind: str, digest: str, files: Mapping[str, str]) -> str:
        """Make a folder of links to blobs, or mend the one that is there.

        Args:
            kind: `releases`, `runners`, `servers`, `libraries` or `inputs`.
            digest: Name of the folder.
            files: Digest of the blob for each file name.

        Returns:
            The folder's path on the device.
        """
        self._change(scripts.install(kind, digest, files))
        return f"{self.root}/{kind}/{digest}"

    def offer(self, digest: str) -> None:
        """Make an installed library the one that applications find as `lib/`, by one rename."""
        self._change(scripts.offer(digest))

    def mark(self, digest: str, *, unchecked: bool) -> None:
        """Keep in mind, or no longer, that a release's outputs were not compared with a reference."""
        self._change(scripts.mark(digest, unchecked=unchecked))

    def is_unchecked(self, digest: str) -> bool:
        """Tell whether a release's outputs were never compared with a reference."""
        return "unchecked" in self._run(scripts.marked(digest)).split()

    def activate(self, digest: str) -> bool:
        """Make a release current, by one rename; return False if it already was."""
        return "new" in self._change(scripts.activate(digest)).splitlines()

    def roll_back(self) -> Generation:
        """Go back to the activation before the current one.

        Raises:
            DeviceError: There is none.
        """
        if "none" in self._change(scripts.roll_back()).splitlines():
            raise self.no_earlier()
        return next(generation for generation in self.generations() if generation.current)

    def no_earlier(self) -> DeviceError:
        """Return the error for a roll-back without anything to go back to."""
        return DeviceError(
            f"there is no earlier release on {self.name}", hint="list the releases: `toolchain releases`"
        )

    def recover(self) -> None:
        """Take a release back that is on trial, if there is one, and restart the application; tell of it."""
        lines = self._change(scripts.RECOVER).splitlines()
        recovered = next((line for line in lines if _RECOVERED.fullmatch(line)), "")
        if not recovered:
            return
        new, old, code = recovered.split()[1:]
        back = (
            f"generation {old} is current again" if old != "0" else "there was no previous release, so none is current"
        )
        self._report(
            f"generation {new} on {self._shell.name} was on trial, and the command that tried it has ended: {back}"
        )
        if code != "0":
            tail = process.tail("\n".join(lines[lines.index(recovered) + 1 :]))
            self._report(f"the application there could not be restarted: {tail or f'exit code {code}'}")

    def settle(self, owner: Owner) -> None:
        """Take the lock for a moment if a release is on trial: what follows begins with the one that stays.

        Raises:
            BusyError: The trial goes on.
        """
        if self._run('[ ! -e "$ROOT/trial" ] || echo open'):
            with self.lock(owner):
                pass

    def put_recovery(self) -> None:
        """Bring the script that a unit runs before its application, or mend the one that is there."""
        self._change(scripts.put_recovery())

    def attempt(self, script: str, seconds: float) -> str:
        """Run a script that changes the store and may go on when this client is gone; see `Lease.attempt`."""
        return self._require_lease.attempt(script, seconds)

    def look(self, script: str) -> str:
        """Run a script that changes nothing, without the lock; return its output.

        Raises:
            DeviceError: It failed.
        """
        return self._run(script)

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` activations, and every blob that nothing links to any more."""
        self._change(scripts.prune(keep))

    def drop_inputs(self, digest: str) -> None:
        """Remove inputs that nobody runs again, and their blob."""
        self._change(scripts.DROP_INPUTS.format(digest=digest))

    def generations(self) -> tuple[Generation, ...]:
        """List the activations there are, oldest first."""
        output = self._run(f'cd "$ROOT" 2>/dev/null || exit 0\n{scripts.LIST}')
        lines = output.split("\n")  # and at nothing else that a name may have in it
        current = next((line[8:] for line in lines if line.startswith("current ")), "")
        rows = [_GENERATION.fullmatch(line) for line in lines if line.startswith("generation ")]
        if not all(rows):
            raise self._invalid_answer("the list of its releases", output)
        fields = [row.groups() for row in rows if row]
        generations = [
            Generation(int(number), digest, int(seconds), name, f"generations/{number}" == current)
            for number, digest, seconds, name in fields
        ]
        return tuple(sorted(generations, key=lambda generation: generation.number))

    def current(self) -> Generation | None:
        """Return the activation that the device runs, or None where nothing was ever deployed."""
        return next((generation for generation in self.generations() if generation.current), None)

    def read(self, path: str) -> bytes:
        """Return the content of a small text file under the root."""
        return self._run(f'cat "$ROOT"/{shlex.quote(path)}').encode()

    @property
    def _require_lease(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("the store was changed without its lock")
        return self._lease

    def _change(self, script: str, size: int = 0) -> str:
        """Run a script that changes the store, as the holder of its lock."""
        return self._require_lease.run(script, size)

    def _rows(self, script: str, *, columns: int, size: int) -> list[list[str]]:
        """Run such a script and read a table of digests from its output, between warnings of the device's tools."""
        rows = [line.split() for line in self._change(script, size).split("\n")]
        return [row for row in rows if len(row) == columns and len(row[1]) == _DIGEST_CHARACTERS]

    def _invalid_answer(self, what: str, output: str) -> DeviceError:
        return DeviceError(
            f"{self._shell.name} did not return {what} in a valid form",
            details=process.tail(output)[:_SHOWN],
            hint="log in and check the device's shell, tools and store",
        )

    def _run(self, script: str) -> str:
        """Run a script that changes nothing that matters."""
        with reminding(self._shell.report, f"{self.name}, which reads its store"):
            result = self._shell.run(f"set -eu; umask 022; {self._set_root}\n{script}", check=False)
        ending, hint = ending_of(result.returncode)
        if hint:  # a signal ended it, which no other folder changes
            raise DeviceError(f"reading the store of {self.name} {ending}", details=result.stderr, hint=hint)
        if result.returncode != 0:
            raise DeviceError(
                f"{self._shell.name} has no usable store ({self._set_root})",
                details=process.tail(result.stderr or result.stdout),
                hint="check that the folder is writable for this user, or choose another one with --root",
            )
        return result.stdout


def _free_kib(line: str) -> int:
    """Read the fourth column of `df -Pk`: file system, size, used, available."""
    fields = line.split()
    return _number(fields[3]) if len(fields) > 3 else 0  # noqa: PLR2004


def _number(text: str) -> int:
    """Read a number that a device told; 0 where it told none."""
    return int(text) if _NUMBER.fullmatch(text) else 0
