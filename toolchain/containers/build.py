"""Images from Dockerfiles: `docker build`, then a second image of the same content, whose ID depends only on that."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from toolchain import __version__, architecture, process, resources, temporary
from toolchain.containers import archive as image_archive
from toolchain.containers import run
from toolchain.containers.recipe import Recipe
from toolchain.errors import BuildError, InputError, reason
from toolchain.progress import Step

Tell = Callable[[str], None]
"""Called with a line about progress."""

ARGUMENTS = "edge-toolchain.arguments"
SOURCES = "edge-toolchain.sources"

_DOCKER = "TOOLCHAIN_DOCKER"
_NDK = "NDK_ARCHIVE"
_WORK_TAG = "edge-toolchain/work"
_ANSWER_S = 1800.0
_STALE_S = 6 * 3600  # older work images are left over from killed builds
_NO_BUILDX = "buildx component is missing or broken"
_NO_REGISTRY = ("failed to resolve", "failed to do request", "pull access denied", "registry-1", 'Get "https://')
_LAYER = " ---> "
_LAYER_LINE = re.compile(" ---> [0-9a-f]+")
_CACHED = " ---> Using cache"
_STEP = re.compile(r"(?:^Step |\[[^\]]*?)(\d+)/(\d+)(?=\]| :)")  # the classic builder's, and BuildKit's
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONFLICT = 409
_IN_USE = "being used by"
_CANCEL_S = 10.0
_PAUSE_S = 0.1
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# Arguments that determine an image's content. The others name download locations, which are private.
_CONTENT = ("BASE_IMAGE", "DEBIAN_SNAPSHOT", "NDK_SHA256", "NDK_API", "SOURCE_DATE_EPOCH")


@dataclass(frozen=True)
class BuildOptions:
    """Sources of an image's content. Empty options mean the Dockerfile's defaults."""

    base: str = ""  # image
    snapshot: str | None = None  # Debian's time stamp; None: the Dockerfile's, or none if there is a mirror
    mirror: str = ""  # URL above Debian's `debian/` and `debian-security/`
    index: str = ""  # of Python packages
    certificates: tuple[Path, ...] = ()  # files with certificates that downloads also trust
    ndk: str = ""  # path or URL of a zip file with an Android NDK
    ndk_sha256: str = ""
    created: int | None = None  # seconds since 1970, the time of all files in the image
    cache: bool = True  # whether unchanged steps come from the engine's build cache

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> BuildOptions:
        """Read TOOLCHAIN_BASE_IMAGE, _DEBIAN_SNAPSHOT, _DEBIAN_MIRROR, _PIP_INDEX_URL, _EXTRA_CA and _NDK(_SHA256)."""
        get = environment.get
        certificates = [Path(name) for name in get("TOOLCHAIN_EXTRA_CA", "").split(os.pathsep) if name]
        created = get("SOURCE_DATE_EPOCH", "")
        if created and not created.isdecimal():
            raise InputError(f"SOURCE_DATE_EPOCH is {created!r}, which is not a valid number of seconds")
        return cls(
            base=get("TOOLCHAIN_BASE_IMAGE", ""),
            snapshot=get("TOOLCHAIN_DEBIAN_SNAPSHOT"),
            mirror=get("TOOLCHAIN_DEBIAN_MIRROR", ""),
            index=get("TOOLCHAIN_PIP_INDEX_URL", ""),
            certificates=tuple(certificates),
            ndk=get("TOOLCHAIN_NDK", ""),
            ndk_sha256=get("TOOLCHAIN_NDK_SHA256", ""),
            created=int(created) if created else None,
        )

    def ndk_file(self, recipe: Recipe) -> Path | None:
        """Return the NDK's archive, if it is a local file and the image has an argument for it."""
        return Path(self.ndk) if self.ndk and "://" not in self.ndk and _NDK in recipe.arguments else None

    def arguments(self, recipe: Recipe) -> dict[str, str]:
        """Return the build arguments of an image, its defaults among them."""
        snapshot = "" if self.snapshot is None and self.mirror else self.snapshot
        values = {
            "BASE_IMAGE": self.base or None,
            "DEBIAN_SNAPSHOT": snapshot,
            "DEBIAN_MIRROR": self.mirror or None,
            "PIP_INDEX_URL": self.index or None,
            _NDK: (self.ndk if "://" in self.ndk else Path(self.ndk).name) or None,
            "NDK_SHA256": self.ndk_sha256 or None,
            "SOURCE_DATE_EPOCH": None if self.created is None else str(self.created),
        }
        chosen = {name: value for name, value in values.items() if value is not None and name in recipe.arguments}
        return {**recipe.arguments, **chosen}


@dataclass(frozen=True)
class BuiltImage:
    name: str
    tag: str
    id: str  # digest of its content
    size: int  # bytes in its files
    seconds: float  # duration of the build


def content(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the build arguments that determine an image's content."""
    return {name: value for name, value in sorted(arguments.items()) if name in _CONTENT}


def build(recipe: Recipe, tag: str, options: BuildOptions, tell: Tell) -> BuiltImage:
    """Build an image and load it under a tag, which moves from an older image.

    Raises:
        InputError: A certificate or an NDK archive cannot be read, or the archive's checksum is missing.
        BuildError: Docker is missing or refuses, or a step of the Dockerfile fails.
    """
    start = time.monotonic()
    if options.ndk and not options.ndk_sha256:
        raise InputError(f"the checksum of {options.ndk} is missing", hint="add the archive's SHA-256 checksum")
    arguments = options.arguments(recipe)
    try:
        with temporary.folder() as folder, run.engine(_ANSWER_S) as client:
            job = _Job(client, Path(folder), recipe, arguments, options, tell)
            image = _run_job(job, tag)
    except OSError as fault:
        hint = "the build writes temporary files of twice the image's size; set TMPDIR to a folder with enough space"
        raise BuildError(f"the image {recipe.name} could not be written: {reason(fault)}", hint=hint) from fault
    return BuiltImage(recipe.name, tag, image.id, image.attrs["Size"], time.monotonic() - start)


@dataclass(frozen=True)
class _Job:
    client: Any
    folder: Path
    recipe: Recipe
    arguments: Mapping[str, str]
    options: BuildOptions
    tell: Tell
    lines: list[str] = field(default_factory=list)  # Docker's output so far


def _run_job(job: _Job, tag: str) -> Any:
    """Build an image, export its file system, and load that as an image whose ID depends only on its content."""
    job.recipe.copy(job.folder / "context", job.options.certificates, job.options.ndk_file(job.recipe))
    _sweep(job.client)
    # The image's own time may be SOURCE_DATE_EPOCH, so its tag has the real time, for `_sweep`.
    work = f"{_WORK_TAG}:{time.time():.0f}-{secrets.token_hex(8)}"
    exported, archive = job.folder / "exported.tar", job.folder / "image.tar"
    try:
        _docker_build(job, work)
        job.tell(f"{job.recipe.name}: exporting its file system")
        config = _export(job, work, exported)
    finally:
        _remove_image(job.client, work)
        _remove_layers(job.client, job.lines)
    job.tell(f"{job.recipe.name}: normalising its files")
    identity = image_archive.write(exported, archive, tag, config)
    exported.unlink()
    replaced = {image.id for image in job.client.images.list(name=tag)} - {identity}
    with archive.open("rb") as stream:
        job.client.images.load(stream)
    for image in replaced:
        with contextlib.suppress(run.docker().errors.APIError):  # a container still runs it
            job.client.images.remove(image)
    return job.client.images.get(tag)


def _sweep(client: Any) -> None:
    """Remove containers and images that are left over from killed builds and runs."""
    old = time.time() - _STALE_S
    for container in client.containers.list(
        all=True, sparse=True, ignore_removed=True, filters={"label": run.WORK_LABEL, "status": "created"}
    ):
        if container.attrs["Created"] < old:
            run.discard(container)
    for name in [name for image in client.images.list(name=_WORK_TAG) for name in image.tags]:
        created = name.rpartition(":")[2].partition("-")[0]
        if created.isdecimal() and int(created) < old:
            _remove_image(client, name)


def _remove_image(client: Any, image: str) -> None:
    with contextlib.suppress(run.docker().errors.ImageNotFound):
        client.images.remove(image, force=True)


def _docker_build(job: _Job, tag: str) -> None:
    variables = {**job.arguments, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "1")}
    names = [*job.arguments, *(name for name in _PROXIES if os.environ.get(name))]
    context = job.folder / "context"
    argv = [os.environ.get(_DOCKER) or "docker", "build", "--force-rm", "--file", str(context / job.recipe.dockerfile)]
    argv += ["--tag", tag, *([] if job.options.cache else ["--no-cache"])]
    # Docker takes the value of a bare argument from the environment, which other users cannot see: a proxy's URL may
    # have a password.
    argv += [argument for name in names for argument in ("--build-arg", name)]
    code = _run_docker(job, [*argv, str(context)], variables)
    if code != 0 and _NO_BUILDX in "\n".join(job.lines):
        job.tell("this docker command has no buildx; using its classic builder")
        job.lines.clear()
        code = _run_docker(job, [*argv, str(context)], {**variables, "DOCKER_BUILDKIT": "0"})
    if code == 0:
        return
    text = "\n".join(job.lines)
    hint = f"without a registry, set TOOLCHAIN_BASE_IMAGE to a local image: see {resources.manual('containers')}"
    raise BuildError(
        f"the image {job.recipe.name} could not be built",
        details=process.tail(text),
        hint=hint if any(message in text for message in _NO_REGISTRY) else "",
    )


def _run_docker(job: _Job, argv: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command, report each line of its outputs at once, and return its exit code."""
    with _spawn(argv, variables) as child:
        child.stdin.close()
        for line in _lines_of(child.stdout, child.stderr):
            text = _COLOUR.sub("", line).rstrip()
            if text:
                job.lines.append(text)
                job.tell(text)
                if step := _STEP.search(text):
                    number, total = (int(number) for number in step.groups())
                    job.tell(Step(f"building the image {job.recipe.name}", number - 1, total, "steps"))
        return int(child.wait())


def _lines_of(*streams: IO[str]) -> Iterator[str]:
    """Yield the lines of several streams at once, in the caller's thread, so that `tell` may raise."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def follow(stream: IO[str]) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    for stream in streams:
        threading.Thread(target=follow, args=[stream], daemon=True).start()
    for _ in streams:
        yield from iter(lines.get, None)


@contextlib.contextmanager
def _spawn(argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[Any]:
    try:
        child = process.spawn(argv, env=variables)
    except OSError as fault:
        raise BuildError(
            f"{argv[0]} could not be started",
            details=reason(fault),
            hint=f"apt-get install docker.io, or set {_DOCKER} to the docker command",
        ) from fault
    try:
        yield child
    except BaseException:
        # The engine takes a moment to cancel a build; then the rest of the command is killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
        end = time.monotonic() + _CANCEL_S
        while child.poll() is None and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        process.kill_group(child)
        raise


def _remove_layers(client: Any, lines: Sequence[str]) -> None:
    """Remove the layers that the classic builder made in this build, unless another image uses them."""
    errors = run.docker().errors
    pairs = zip(["", *lines], lines, strict=False)
    layers = [line.removeprefix(_LAYER) for before, line in pairs if _LAYER_LINE.fullmatch(line) and before != _CACHED]
    for identity in reversed(layers):
        with contextlib.suppress(errors.ImageNotFound):
            image = client.images.get(identity)
            if not image.tags and not image.attrs.get("RepoDigests"):
                _remove_unused(client, image.id)


def _remove_unused(client: Any, identity: str) -> None:
    end = time.monotonic() + _CANCEL_S
    while True:
        try:
            client.images.remove(identity, noprune=True)
        except run.docker().errors.APIError as fault:
            if fault.status_code != _CONFLICT:
                raise
            if _IN_USE in str(fault.explanation) and time.monotonic() < end:  # a step that is being cancelled uses it
                time.sleep(_PAUSE_S)
                continue
        return  # removed, or it is a base of another image


def _export(job: _Job, image: str, target: Path) -> image_archive.ImageConfig:
    """Write an image's file system to a tar file and return its settings."""
    container = job.client.containers.create(image, command=["-"], labels={run.WORK_LABEL: "export"})
    try:
        with target.open("wb") as stream:
            for chunk in container.export():
                stream.write(chunk)
    finally:
        run.discard(container)
    attributes = job.client.images.get(image).attrs
    settings = attributes["Config"]
    pairs = [entry.partition("=") for entry in settings.get("Env") or []]
    recorded = attributes["Architecture"], attributes.get("Variant") or ""
    label = job.recipe.labels.get("edge-toolchain.architecture", "")
    # An engine records its own architecture for every image that it builds.
    docker_name, variant = architecture.of_debian(label).docker if label else recorded
    created, content_arguments = int(job.arguments["SOURCE_DATE_EPOCH"]), content(job.arguments)
    labels = {
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
        "org.opencontainers.image.base.name": job.arguments["BASE_IMAGE"],
        ARGUMENTS: json.dumps(content_arguments, sort_keys=True),
        SOURCES: job.recipe.digest(content_arguments),
    }
    return image_archive.ImageConfig(
        created=created,
        labels={**job.recipe.labels, **labels},
        environment={name: value for name, _, value in pairs if value},
        entrypoint=tuple(settings.get("Entrypoint") or ()),
        command=tuple(settings.get("Cmd") or ()),
        architecture=docker_name,
        variant=variant,
    )


def is_current(recipe: Recipe, labels: Mapping[str, str]) -> bool:
    """Whether an image's recipe has not changed since it was built, for the same arguments."""
    try:
        arguments = json.loads(labels.get(ARGUMENTS, ""))
    except ValueError:
        return False
    return isinstance(arguments, dict) and labels.get(SOURCES) == recipe.digest(arguments)
