"""The commands `push` and `pull`, and the options that name a registry."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, declare
from toolchain.cli.console import SCREEN, Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.errors import InputError
from toolchain.progress import size_text

if TYPE_CHECKING:
    from toolchain.registry import Access, Login


@dataclass(frozen=True)
class RegistryOptions:
    """How to reach a registry."""

    authorities: Path | None = option(
        "--ca", type=common.PATH, help="CA certificates for the registry. Default: those of the system."
    )
    plain: bool = option("--plain-http", is_flag=True, help="Connect to the registry without encryption.")
    username: str | None = option(
        "--username", metavar="USER", help="User name at the registry. Default: the login that `docker login` stored."
    )
    password_stdin: bool = option(
        "--password-stdin", is_flag=True, help="Read the password from standard input. Default: ask at the terminal."
    )

    def check(self, source: str) -> None:
        """Refuse a malformed address, and options that have no effect because the source is not in a registry.

        Raises:
            InputError: The address is not valid, or there are such options.
        """
        from toolchain import registry

        if registry.is_address(source):
            registry.parse(source)
        elif self != RegistryOptions():
            raise InputError(
                "--ca, --plain-http, --username and --password-stdin are only for packages in a registry",
                hint=f"leave them out, or name a package as {registry.SCHEME}HOST/REPOSITORY:TAG",
            )

    def access(self) -> Access:
        """Return how to reach the registry; asks for the password.

        Raises:
            InputError: The options cannot be combined, or there is no password.
        """
        from toolchain.registry import Access

        if self.plain and self.authorities:
            raise InputError(
                "--ca and --plain-http cannot be combined: without encryption no certificate is used",
                hint="leave one of them out",
            )
        return Access(self.authorities, self.plain, self._login())

    def _login(self) -> Login | None:
        from toolchain.registry import Login

        if not self.username:
            if self.password_stdin:
                raise InputError("--password-stdin needs --username", hint="add --username USER")
            return None
        if self.password_stdin:
            password = _line_of_input()
        elif sys.stdin.isatty():
            SCREEN.close()
            password = str(click.prompt(f"password of {self.username}", hide_input=True, err=True))
        else:
            password = ""
        if not password:
            raise InputError(
                f"there is no password for {self.username}", hint="add --password-stdin and pipe the password in"
            )
        return Login(self.username, password)


def _line_of_input() -> str:
    try:
        line = sys.stdin.readline().rstrip("\r\n")
        line.encode()  # some locales decode invalid bytes as surrogates, which cannot be encoded
    except UnicodeError as fault:
        raise InputError("the password is not valid UTF-8", hint="check the text that is piped in") from fault
    return line


@dataclass(frozen=True)
class PullOptions:
    """The options of `pull`."""

    output: Path = option(
        "-o", "--output", type=common.PATH, metavar="FOLDER", required=True, help="Folder to write the bundle to."
    )
    registry: RegistryOptions = record(RegistryOptions)


@declare.command()
@click.argument("package", type=common.PATH)
@click.argument("address")
@gather("options", RegistryOptions)
@declare.json_flag
@click.pass_obj
def push(console: Console, /, package: Path, address: str, options: RegistryOptions, *, as_json: bool) -> Result:
    """PACKAGE is a package or the folder of a bundle, and ADDRESS is oci://HOST/REPOSITORY:TAG. The digest in the
    registry is the digest of the bundle. Its reference outputs and tuning records are uploaded with it.
    """
    from toolchain import bundle as bundles
    from toolchain import registry

    target = registry.parse(address)
    registry.check_tag(target)
    access = options.access()  # asks for the password before the package is unpacked
    with bundles.at_hand(package) as bundle:
        upload = registry.push(bundle, target, access, console.say)
    document = {
        "address": str(upload.address),
        "tag": upload.tag,
        "digest": upload.address.digest,
        "blobs_sent": upload.blobs_sent,
        "blobs_skipped": upload.blobs_skipped,
        "bytes_sent": upload.bytes_sent,
        "companions": upload.companions,
    }
    sent = f"{upload.blobs_sent} of {upload.blobs_sent + upload.blobs_skipped} blobs, {size_text(upload.bytes_sent)}"
    return Result(f"{upload.address}: {bundle.manifest.name} for {bundle.manifest.board}, {sent}", document, as_json)


@declare.command()
@click.argument("address")
@gather("options", PullOptions)
@declare.json_flag
@click.pass_obj
def pull(console: Console, /, address: str, options: PullOptions, *, as_json: bool) -> Result:
    """ADDRESS is oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST. The package is written to a folder,
    as a bundle.
    """
    from toolchain import bundle as bundles
    from toolchain import registry

    origin = registry.parse(address)
    bundles.check_target(options.output)
    bundle = registry.pull(origin, options.output, options.registry.access(), console.say)
    document = {
        "folder": str(bundle.folder),
        "address": str(origin.pinned(f"sha256:{bundle.digest}")),
        "digest": f"sha256:{bundle.digest}",
        "reference": bundle.reference is not None,
        "manifest": bundle.manifest,
    }
    text = f"{bundle.folder}: {bundle.manifest.name} for {bundle.manifest.board}, sha256:{bundle.digest}"
    text += "; WITHOUT reference outputs: only `deploy --unchecked` accepts it" if bundle.reference is None else ""
    return Result(text, document, as_json)
