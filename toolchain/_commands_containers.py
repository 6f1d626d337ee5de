"""The `containers` commands: images that hold the cross compilers are built, listed and checked."""

from __future__ import annotations

import dataclasses

import click

from toolchain import _options
from toolchain._commands import Console, Result
from toolchain.errors import VerificationError

_names = click.argument("names", nargs=-1, metavar="[NAME]...")


@click.group("containers")
def containers_group() -> None:
    """Build, list and check the images that hold the cross compilers."""


@containers_group.command("list")
@_options.json_flag
def containers_list(*, as_json: bool) -> Result:
    """List the images, and whether they are here and up to date."""
    from toolchain import containers, report  # noqa: PLC0415 - the help needs no Docker client

    found = containers.examine()
    rows = [
        (one.name, one.compiler, one.state, f"{one.size / 2**20:.0f} MiB" if one.id else "", one.id[7:23])
        for one in found
    ]
    return Result(report.columns([("IMAGE", "COMPILER", "STATE", "SIZE", "ID"), *rows]), found, as_json)


@containers_group.command("build")
@_names
@click.option("--ndk", help="Android NDK for the image that has a place for it: a zip file, or its address.")
@click.option("--ndk-sha256", help="The NDK's checksum.")
@click.option("--no-cache", is_flag=True, help="Take nothing from Docker's build cache.")
@_options.json_flag
@click.pass_obj
def containers_build(  # noqa: PLR0913 - one for each option
    console: Console, names: tuple[str, ...], ndk: str | None, ndk_sha256: str | None, *, no_cache: bool, as_json: bool
) -> Result:
    """Build images, all of them or the named ones; docs/containers.md names what the environment decides."""
    from toolchain import containers  # noqa: PLC0415 - as above

    given = containers.BuildOptions.from_environment()
    wanted = dataclasses.replace(
        given, ndk=ndk or given.ndk, ndk_sha256=ndk_sha256 or given.ndk_sha256, cache=not no_cache
    )
    made = [containers.build(name, wanted, console.say) for name in names or containers.names()]
    return Result("\n".join(f"{one.tag}: {one.id}" for one in made), made, as_json)


@containers_group.command("check")
@_names
@_options.json_flag
def containers_check(names: tuple[str, ...], *, as_json: bool) -> Result:
    """Try that images compile, and that a container can do nothing else."""
    from toolchain import containers, report  # noqa: PLC0415 - as above

    found = {name: containers.check(name) for name in names or containers.names()}
    rows = [(name, one.what, one.seen) for name, checks in found.items() for one in checks]
    failed = [f"{name}: {one.what}: {one.seen}" for name, checks in found.items() for one in checks if not one.passed]
    fault = VerificationError(
        f"{len(failed)} check(s) failed", details="\n".join(failed), hint="toolchain containers build"
    )
    return Result(report.columns([("IMAGE", "CHECK", ""), *rows]), found, as_json, fault=fault if failed else None)
