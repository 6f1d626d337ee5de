"""The `containers` commands: build, list and check the images of the cross compilers."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from toolchain.cli import declare, helptext
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option
from toolchain.errors import VerificationError
from toolchain.progress import size_text
from toolchain.report import Table

if TYPE_CHECKING:
    from toolchain.containers import images

_names = click.argument("names", nargs=-1, metavar="[NAME]...")


@declare.group()
def containers() -> None:
    pass


@containers.command("list")
@declare.json_flag
def containers_list(*, as_json: bool) -> Result:
    """List the images: which ones exist, and whether they are up to date."""
    from toolchain.containers import images

    states = images.examine()
    rows = [
        (image.name, image.compiler, image.state, size_text(image.size) if image.id else "", image.id[7:23])
        for image in states
    ]
    return Result(Table(rows, ("IMAGE", "COMPILER", "STATE", "SIZE", "ID"), numbers=[3]), states, as_json)


@containers.command("inventory")
@click.argument("name")
@helptext.option(
    "--provenance", is_flag=True, help="Show how it was built, as an in-toto statement with SLSA provenance."
)
@declare.json_flag
def containers_inventory(name: str, *, provenance: bool, as_json: bool) -> Result:
    """List what an image contains.

    --json prints CycloneDX.
    """
    from toolchain.containers import images

    inventory = images.describe(name)
    if provenance:
        return Result(inventory.provenance.decode(), json.loads(inventory.provenance), as_json)
    rows = [(package.name, package.version, package.purl) for package in inventory.packages]
    return Result(Table(rows, ("NAME", "VERSION", "PACKAGE"), spare=(2,)), json.loads(inventory.bill), as_json)


@dataclass(frozen=True)
class ImageOptions:
    """How images are built."""

    ndk: str | None = option(
        "--ndk", metavar="FILE|URL", help="Android NDK to put into the android image: a zip file or its address."
    )
    ndk_sha256: str | None = option("--ndk-sha256", metavar="SHA256", help="Checksum of the NDK.")
    no_cache: bool = option("--no-cache", is_flag=True, help="Do not use Docker's build cache.")

    def build_options(self) -> images.BuildOptions:
        """Return these options, completed from the environment."""
        from toolchain.containers import images

        defaults = images.BuildOptions.from_environment()
        return dataclasses.replace(
            defaults,
            ndk=self.ndk or defaults.ndk,
            ndk_sha256=self.ndk_sha256 or defaults.ndk_sha256,
            cache=not self.no_cache,
        )


@containers.command("build")
@_names
@gather("options", ImageOptions)
@declare.json_flag
@click.pass_obj
def containers_build(console: Console, /, names: tuple[str, ...], options: ImageOptions, *, as_json: bool) -> Result:
    """Build all images, or the named ones.

    docs/containers.md lists the environment variables that it reads.
    """
    from toolchain.containers import images

    settings = options.build_options()
    built = [images.build(name, settings, console.say) for name in names or images.names()]
    return Result("\n".join(f"{image.tag}: {image.id}" for image in built), built, as_json)


@containers.command("check")
@_names
@declare.json_flag
def containers_check(names: tuple[str, ...], *, as_json: bool) -> Result:
    """Check that the images compile, and that containers are restricted."""
    from toolchain.containers import images

    results = {name: images.check(name) for name in names or images.names()}
    rows = [(name, check.name, check.observation) for name, checks in results.items() for check in checks]
    document = {
        name: [{"what": check.name, "passed": check.passed, "seen": check.observation} for check in checks]
        for name, checks in results.items()
    }
    failed = [
        f"{name}: {check.name}: {check.observation}"
        for name, checks in results.items()
        for check in checks
        if not check.passed
    ]
    fault = VerificationError(
        f"{len(failed)} check(s) failed", details="\n".join(failed), hint="toolchain containers build"
    )
    return Result(Table(rows, ("IMAGE", "CHECK", "SEEN")), document, as_json, fault=fault if failed else None)
