"""The `trust` commands: signatures of packages, and the lowest release that a device accepts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, connection, declare
from toolchain.cli.connection import SlotOptions, open_device
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.signing.statement import Order
    from toolchain.signing.trust import Trust


@declare.group()
def trust() -> None:
    pass


@dataclass(frozen=True)
class SignOptions:
    """The options of `trust sign`."""

    key: Path = option(
        "--key", type=common.PATH, required=True,
        help="Ed25519 key of OpenSSH. If it is a public key, the SSH agent must have the private key.",
    )  # fmt: skip
    sequence: int | None = option(
        "--sequence",
        type=click.IntRange(min=1),
        help="Sequence number of this release of the model. Default: sign the statement that the package has already.",
    )
    minimum: int | None = option(
        "--minimum",
        type=click.IntRange(min=1),
        help="Devices that accept this release refuse lower sequence numbers from then on.",
    )
    replace: bool = option("--replace", is_flag=True, help="Replace an existing statement, and drop its signatures.")

    def order(self) -> Order | None:
        """Return the sequence numbers of the release; None to sign the existing statement.

        Raises:
            InputError: --minimum or --replace has no effect without --sequence.
        """
        from toolchain.signing.statement import Order

        if self.sequence is not None:
            return Order(self.sequence, self.minimum)
        if self.minimum is not None or self.replace:
            raise InputError("--minimum and --replace need --sequence", hint="add --sequence N")
        return None


@trust.command("sign")
@click.argument("source", metavar="PACKAGE", type=common.PATH)
@gather("options", SignOptions)
@declare.json_flag
def sign(source: Path, options: SignOptions, *, as_json: bool) -> Result:
    """Sign a package.

    PACKAGE is a package or the folder of a bundle. Its digest does not change; the signature is added next to it.
    """
    from toolchain import bundle as bundles
    from toolchain.signing import keys
    from toolchain.signing.keys import sign as sign_bundle

    order = options.order()
    key = keys.load(options.key, lambda: _passphrase(options.key))
    with bundles.at_hand(source) as bundle:
        signed = sign_bundle(bundle, key, order, replace=options.replace)
        if not source.is_dir():  # `sign` wrote into a temporary folder; the archive gets the signature, too
            bundles.pack(bundles.load(bundle.folder), source)
    statement = signed.statement
    document = {"package": str(source), "statement": statement, "keys": signed.keys}
    keys_text = ", ".join(signed.keys)
    text = f"{source}: {statement.model} for {statement.board}, sequence {statement.sequence}, signed by {keys_text}"
    return Result(text, document, as_json)


def _passphrase(key: Path) -> str:
    """Ask for the passphrase of a key at the terminal.

    Raises:
        InputError: There is no terminal.
    """
    with click.open_file("-") as terminal:
        if not terminal.isatty():
            raise InputError(
                f"{key} has a passphrase, and there is no terminal to ask for it",
                hint=f"run `ssh-add {key}`, then use --key {key}.pub",
            )
    return str(click.prompt(f"passphrase of {key}", hide_input=True, err=True))


@dataclass(frozen=True)
class VerifyOptions:
    """The options of `trust verify`."""

    trusted: Path = option(
        "--trusted", type=common.PATH, required=True,
        help="Trusted signers, in OpenSSH's allowed_signers format.",
    )  # fmt: skip
    revoked: Path | None = option("--revoked", type=common.PATH, help="Revoked keys, in the same format.")
    threshold: int = option(
        "--threshold",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of trusted signers that must have signed.",
    )
    board: str = option("--board", default="", metavar="BOARD", help="Fail unless the release is for this board type.")
    floor: int = option(
        "--floor", type=click.IntRange(min=0), default=0, help="Lowest sequence number to accept. Default: any."
    )

    def trust(self) -> Trust:
        """Return the trusted and the revoked keys, and how many signers a release needs."""
        from toolchain.signing.trust import Trust

        return Trust.read(self.trusted, self.revoked, self.threshold)


@trust.command("verify")
@click.argument("source", metavar="PACKAGE", type=common.PATH)
@gather("options", VerifyOptions)
@declare.json_flag
def verify(source: Path, options: VerifyOptions, *, as_json: bool) -> Result:
    """Check a package's integrity and its signatures.

    PACKAGE is a package or the folder of a bundle.
    """
    from toolchain import bundle as bundles
    from toolchain.signing import trust as trusting

    trust = options.trust()
    with bundles.at_hand(source) as bundle:
        approval = trusting.approve(bundle, trust, trusting.Requirement(options.board, options.floor))
    statement = approval.statement
    signers = ", ".join(approval.signers)
    text = f"{source}: {statement.model} for {statement.board}, sequence {statement.sequence}, signed by {signers}"
    return Result(text, {"package": str(source), "statement": statement, "signers": approval.signers}, as_json)


@trust.command("floor")
@click.argument("sequence", type=click.IntRange(min=1))
@connection.slot_options
@declare.json_flag
@click.pass_obj
def floor(console: Console, /, sequence: int, device: SlotOptions, *, as_json: bool) -> Result:
    """Set the lowest release number that a device accepts.

    From now on the device refuses releases of its current model whose sequence number is below SEQUENCE.
    """
    from toolchain.device import trust
    from toolchain.device.lock import Owner

    with open_device(device.board(), device, console.say) as connected, connected.store.lock(Owner.here("floor")):
        floor = trust.raise_floor(connected.store, sequence)
    text = f"{connected.name} accepts {floor.model} from sequence number {floor.floor} on; it runs {floor.sequence}"
    return Result(text, {**dataclasses.asdict(floor), "waited": connected.store.waited}, as_json)
