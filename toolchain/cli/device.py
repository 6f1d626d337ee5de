"""Commands for one device: deploy, run and measure a model, show what the device has, and roll back."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain.cli import assignments, common, completion, connection, declare, helptext, tuning
from toolchain.cli.connection import SlotOptions, StatusOptions, open_device
from toolchain.cli.console import Console, Result, with_next
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.int8 import Int8Options, OpenedConversion
from toolchain.cli.registry import RegistryOptions
from toolchain.cli.steps import StepOptions
from toolchain.errors import InputError
from toolchain.progress import size_text
from toolchain.report import Table

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.device import trust
    from toolchain.device.application import Trial
    from toolchain.device.store import Generation, Store
    from toolchain.models.request import Model
    from toolchain.pipeline.evaluate import Requirement
    from toolchain.pipeline.run import RunRequest


@dataclass(frozen=True)
class DeployOptions:
    """The options of `deploy`."""

    device: SlotOptions = record(SlotOptions)
    toolchain: str | None = common.toolchain()
    model: common.ModelOptions = record(common.ModelOptions)
    inputs: common.InputOptions = record(common.InputOptions)
    steps: StepOptions = record(StepOptions)
    measuring: common.MeasureOptions = record(common.MeasureOptions)
    report: common.ReportOptions = record(common.ReportOptions)
    compiling: common.CompileOptions = record(common.CompileOptions)
    tolerance: float | None = common.tolerance()
    samples: int = common.samples("Compare the outputs of N random inputs, and count changed classes.")
    evaluate: Path | None = option(
        "--evaluate",
        type=common.PATH,
        metavar="FILE.toml",
        help="Run your own samples on the device, and refuse a release that loses more than this file allows.",
    )
    int8: Int8Options = record(Int8Options)
    trials: int | None = option(
        "--trials", type=click.IntRange(min=1), help="Tune the model first, with N trials; see `toolchain tune`."
    )
    output: Path | None = option(
        "-o", "--output", type=common.PATH, metavar="FOLDER", help="Keep the bundle in this folder."
    )
    library: bool = option(
        "--with-library", is_flag=True, help="Also install the C library for applications, as ROOT/lib."
    )
    unchecked: bool = common.unchecked()
    registry: RegistryOptions = record(RegistryOptions)

    def check(self, source: str) -> None:
        """Refuse options that have no effect.

        Raises:
            InputError: An option has no effect on this source.
        """
        from toolchain.pipeline.source import is_built

        built = is_built(source)
        if self.output and built and Path(source).is_dir():
            raise InputError("-o keeps a new bundle, but this is already a bundle", hint="leave -o out")
        self.registry.check(source)
        self.int8.check(source)
        fixing = {"--shape": self.model.shapes, "--dim": self.model.dims, "--fix": self.model.fixed}
        fixing |= {"--state": self.model.states, "--pre": self.steps.pre, "--post": self.steps.post}
        fixing["--max-ram"] = (str(self.compiling.max_ram),) if self.compiling.max_ram else ()
        if built and (unused := [name for name, values in fixing.items() if values]):
            raise InputError(f"{unused[0]} is for models, but this one is already built", hint=f"leave {unused[0]} out")
        if self.unchecked and not built:
            raise InputError(
                "--unchecked is only for packages: a model is built with its reference outputs",
                hint="leave --unchecked out",
            )
        self._check_variants()
        if self.evaluate and self.unchecked:
            raise InputError("--evaluate and --unchecked contradict each other", hint="leave one of them out")
        if self.trials and built:
            raise InputError("--trials tunes a model, but this one is already built", hint="leave --trials out")
        if self.trials and self.compiling.no_records:
            raise InputError("--no-records ignores the records that --trials makes", hint="leave one of them out")

    def _check_variants(self) -> None:
        """Refuse options that are for one set of shapes."""
        if not assignments.parse_model_shapes(self.model.shapes, self.model.dims).variants:
            return
        options = {"--trials": self.trials, "--evaluate": self.evaluate, "--int8": self.int8.folder}
        options["--labels"] = self.inputs.labels
        for name, value in options.items():
            if value:
                raise InputError(
                    f"{name} is for one set of shapes, and these options make several variants",
                    hint="tuning records of one shape apply to its variant: run `toolchain tune` for each shape first"
                    if name == "--trials"
                    else f"leave {name} out, or deploy a release for each shape",
                )

    def requirement(self, source: str, conversion: OpenedConversion | None) -> Requirement | None:
        """Read the file of --evaluate.

        Raises:
            InputError: It is wrong.
        """
        if not self.evaluate:
            return None
        from toolchain.pipeline import evaluate
        from toolchain.pipeline.source import is_built

        requirement = evaluate.read_requirement(self.evaluate)
        if is_built(source):
            return requirement
        fixed = assignments.parse_fixed(self.model.fixed)
        requirement = requirement.of_model(evaluate.ModelFiles(source, fixed=fixed, seed=self.model.seed))
        if conversion and not requirement.files.compiled:
            files = dataclasses.replace(requirement.files, compiled=str(conversion.path))
            requirement = dataclasses.replace(requirement, files=files)
        return requirement

    def tune_options(self, trials: int) -> tuning.TuneOptions:
        """Return the options of `tune` for the tuning before the build."""
        return tuning.TuneOptions(
            device=self.device,
            toolchain=self.toolchain,
            model=self.model,
            inputs=common.InputFileOptions(self.inputs.npz, self.inputs.image, self.inputs.sound),
            search=common.SearchOptions(trials=trials),
            kernels=self.compiling.kernels,
            threads=self.measuring.threads,
            records=self.compiling.records,
        )


@declare.command(common.REPORTS)
@click.argument(
    "source",
    metavar="MODEL-OR-PACKAGE",
    shell_complete=completion.models,
    callback=common.explain_name("package"),
)
@gather("options", DeployOptions)
@click.pass_obj
def deploy(console: Console, /, source: str, options: DeployOptions) -> Result:
    """MODEL is a predefined network or an .onnx file. A package or a bundle is deployed as it is; a package may be in a
    registry: oci://HOST/REPOSITORY@sha256:DIGEST, or :TAG.
    """
    return run_deploy(console, source, options)


def run_deploy(console: Console, source: str, options: DeployOptions) -> Result:
    """Deploy a model; `board add` does it as well, as a test."""
    from toolchain import bundle
    from toolchain.pipeline.deploy import Conversion, Job, deploy_model
    from toolchain.pipeline.source import BundleSource, is_built
    from toolchain.progress import Stages

    if options.output:
        bundle.check_target(options.output)
    options.check(source)
    if is_built(source):
        options = dataclasses.replace(options, device=options.device.for_bundle(source))
    device, board = options.device, options.device.board(**options.compiling.kernels.precision)
    entry = device.device(board)
    floats = options.steps.add_to(options.model.model(source, options.inputs))
    conversion = options.int8.open(console, floats, board, options.model, options.inputs.labels)
    connection.announce(entry, board, device, console.say)
    stages, access = Stages(console.say), options.registry.access()

    def bundle_source(model: Model) -> BundleSource:
        request = options.compiling.request(
            model,
            board,
            console.say,
            options.toolchain,
            emulated=entry.emulated,
            threads=options.measuring.threads,
        )
        return BundleSource(request, stages, access, options.samples, options.unchecked)

    requirement = options.requirement(source, conversion)
    given = bundle_source(floats)
    if conversion:
        source, options = str(conversion.path), dataclasses.replace(options, model=conversion.options(options.model))
    settings = options.measuring.settings(options.inputs.labels, options.tolerance, options.samples)
    job = Job(
        source=bundle_source(conversion.model) if conversion else given,
        connect=functools.partial(open_device, board, device, progress=console.say, makes_slot=True),
        settings=dataclasses.replace(settings, library=options.library, unchecked=options.unchecked),
        folder=options.output,
        conversion=Conversion(given, conversion.write) if conversion else None,
        tune=functools.partial(tuning.run_tune, console, source, options.tune_options(options.trials))
        if options.trials
        else None,
        requirement=requirement,
        warnings=lambda connected, facts: connection.cpu_warnings(connected, facts, device, options.measuring.threads),
    )
    report = dataclasses.replace(deploy_model(job), board_reason=device.resolve().reason)
    result = options.report.write(report, "deploy")
    following = _next_commands(device, board, can_roll_back=report.can_roll_back)
    return with_next(result, [words for words in following if words[1] != "profile" or not report.variants])


def _next_commands(device: SlotOptions, board: Board, *, can_roll_back: bool) -> list[list[str]]:
    """Return the commands that are useful after a deploy, for the same device."""
    flags: list[tuple[str, object]] = [
        ("--host", device.host),
        ("--place", device.place),
        ("--devices", device.devices),
    ]
    flags += [
        ("--slot", device.slot),
        ("--root", device.root),
        ("--identity", device.identity),
        ("--ssh-config", device.ssh_config),
    ]
    flags += [("--known-hosts", path) for path in device.known_hosts]
    name = device.board_name if device.board_name.endswith(".toml") else board.name
    device_arguments = [
        "--board",
        name,
        *(argument for option_name, value in flags if value for argument in (option_name, str(value))),
    ]
    commands = [["run", *device_arguments, "--input", "FILE.npz", "-o", "outputs.npz"], ["profile", *device_arguments]]
    commands += [["rollback", *device_arguments]] if can_roll_back else []
    return [["toolchain", *arguments] for arguments in commands]


@dataclass(frozen=True)
class RunOptions:
    """The options of `run`."""

    device: SlotOptions = record(SlotOptions)
    npz: Path | None = option(
        "--input",
        type=common.PATH,
        help="Inputs: an .npz file with one array for each input, or an .npy file. Many samples need one more axis.",
    )
    stream: Path | None = option(
        "--stream",
        type=common.PATH,
        help="Steps of a model with a state: float32 numbers of one step after the other, from a file or from standard "
        "input (-); or an .npz file. With steps for sounds: a WAV file, or raw samples of 16 bits.",
    )
    steps: int | None = option(
        "--steps",
        type=click.IntRange(1, 10_000_000),
        help="Run N steps of a model with a state: the first of --stream, or the same --input in each.",
    )
    pictures: tuple[Path, ...] = option(
        "--image",
        type=common.PATH,
        multiple=True,
        help="Picture to use as the input, or a folder of pictures; can be repeated.",
    )
    sounds: tuple[Path, ...] = option(
        "--sound",
        type=common.PATH,
        multiple=True,
        help="WAV file to use as the input, or a folder of them; can be repeated.",
    )
    output: Path = option(
        "-o", "--output", type=common.PATH, required=True, help="Where to write the outputs, an .npz file."
    )
    labels: Path | None = same(common.InputOptions, "labels")
    threads: int | None = same(common.MeasureOptions, "threads")
    variant: str = option(
        "--variant",
        metavar="NAME",
        default="",
        help="Run this variant of a release with several. Default: the one that fits the arrays.",
    )

    crops: str = option(
        "--crops",
        metavar="SLOT",
        default="",
        help="Run the model of this slot on each box that is found in a picture.",
    )

    def request(self) -> RunRequest:
        """Return what to run, checked as far as that is possible without the device."""
        from toolchain.pipeline.run import RunRequest

        request = RunRequest(
            self.output,
            self.npz,
            self.pictures,
            self.labels,
            self.threads or 0,
            self.stream,
            self.steps or 0,
            self.variant,
            self.sounds,
            self.crops,
        )
        request.check()
        return request


@declare.command()
@gather("options", RunOptions)
@declare.json_flag
@click.pass_obj
def run(console: Console, /, options: RunOptions, *, as_json: bool) -> Result:
    """Its outputs are written to a file."""
    from toolchain.pipeline import preflight
    from toolchain.pipeline import run as running
    from toolchain.progress import Stages

    request, board = options.request(), options.device.board()
    with open_device(board, options.device, console.say) as device:
        preflight.before_bench(board, device)
        report = running.run(request, device, Stages(console.say))
    return Result(report.render_text(), report.document(), as_json)


def _releases(console: Console, device: StatusOptions, *, as_json: bool) -> Result:
    """Return the releases of every slot, or of one that was named."""
    from toolchain.device import application

    with open_device(device.board(), device, console.say) as connected:
        slots, trials = connected.store.releases.in_each_slot(), application.trials(connected.store)
    if device.slot:
        slots = {device.slot: slots.get(device.slot, ())}
    document: list[dict[str, object]] = []
    rows = []
    for slot, generations in sorted(slots.items()):
        failed = _taken_back(trials.get(slot))
        for item in generations:
            has_failed = (item.number, item.digest) == failed
            document.append({"slot": slot, **dataclasses.asdict(item), "failed": has_failed})
            mark = "*" if item.current else "failed" if has_failed else ""
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.time))
            row = (mark, str(item.number), item.digest[:16], when, item.name)
            rows.append((slot, *row) if any(slots) else row)
    head = ("", "#", "RELEASE", "ACTIVATED", "MODEL")
    return Result(Table(rows, ("SLOT", *head) if any(slots) else head), document, as_json)


def _taken_back(trial: Trial | None) -> tuple[int, str] | None:
    """Return the generation and the release of a trial that was taken back."""
    is_back = trial and trial.state in {"failed", "interrupted"} and trial.new != trial.old
    return (trial.new, trial.digest) if trial and is_back else None


@declare.command()
@connection.status_options
@helptext.option("--releases", "list_releases", is_flag=True, help="List all releases that the device keeps instead.")
@declare.json_flag
@click.pass_obj
def status(console: Console, /, device: StatusOptions, *, list_releases: bool, as_json: bool) -> Result:
    """With --releases, the current release is marked with *."""
    if list_releases:
        return _releases(console, device, as_json=as_json)
    from toolchain.device import application, trust

    with open_device(device.board(), device, console.say) as connected:
        store, run_table = connected.store, connected.entry.run
        facts, slots, trials = store.facts(), store.releases.in_each_slot(), application.trials(store)
        current = next((item for item in slots.get(store.slot, ()) if item.current), None)
        application_state = application.state(store, run_table) if run_table else None
        unchecked = store.releases.is_unchecked(current.digest) if current else None
        signature = trust.state(store) if current else None
        support, support_text = _support(store, current.digest) if current else ("", "")
    trial = trials.get(store.slot)
    rows = [
        ("device", f"{connected.name}, {facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
        ("free", f"{size_text(facts.free_kib * 1024)} in {store.folder}"),
        *([("slot", store.slot)] if store.slot else []),
        ("release", f"{current.name} {current.digest[:16]}" if current else "none"),
        *([("outputs", "UNCHECKED: deployed without reference outputs")] if unchecked else []),
        *([("signed", _signature_text(signature))] if signature else []),
        *([("supported", support_text)] if support_text else []),
    ]
    if application_state:
        unit = f"{application_state.unit}, " if application_state.unit else ""
        health = "healthy" if application_state.healthy else "NOT HEALTHY"
        rows.append(("application", f"{application_state.name}: {unit}{health}"))
    rows += [("trial", _trial_text(trial))] if trial else []
    others = _other_slots(slots, trials, store.slot)
    rows += [(f"slot {other['slot']}" if other["slot"] else "without a slot", _slot_text(other)) for other in others]
    document = {"host": connected.name, "facts": facts, "slot": store.slot, "current": current, "unchecked": unchecked}
    document |= {"signature": signature, "application": application_state, "trial": trial, "other_slots": others}
    document |= {"supported_until": support}
    return Result(Table(rows), document, as_json)


def _support(store: Store, digest: str) -> tuple[str | None, str]:
    """Return until when a release's publisher supports it, and a text; None if its manifest cannot be read."""
    from toolchain.device import installed
    from toolchain.errors import VerificationError

    try:
        until = installed.read_manifest(store, digest).supported_until
    except VerificationError as fault:
        return None, f"unknown: {fault.message}"
    ended = bool(until) and datetime.now().astimezone().date().isoformat() > until
    return until, f"until {until}, which has passed" if ended else until and f"until {until}"


def _other_slots(
    slots: Mapping[str, Sequence[Generation]], trials: Mapping[str, Trial], chosen: str
) -> list[dict[str, Any]]:
    """Return the current release and the last trial of each slot but one."""
    others = []
    for slot, generations in sorted(slots.items()):
        current = next((item for item in generations if item.current), None)
        if slot != chosen and (slot or current):
            others.append({"slot": slot, "current": current, "trial": trials.get(slot)})
    return others


def _slot_text(slot: Mapping[str, Any]) -> str:
    current, trial = slot["current"], slot["trial"]
    text = f"{current.name} {current.digest[:16]}" if current else "no release"
    return f"{text}; trial of {_trial_text(trial)}" if trial and trial.state != "healthy" else text


def _signature_text(state: trust.State) -> str:
    """Describe who signed the release, and whether the device accepts it."""
    from toolchain.device.scripts import TRUST

    if state.refused:
        return f"NO LONGER ACCEPTED: {state.refused}"
    if state.unknown:
        return f"unknown: {state.unknown}"
    if state.verified is None:
        unchecked = f"yes, but this device does not check signatures (no {TRUST}/trusted)"
        return unchecked if state.signed else "no"
    verified = state.verified
    floor = f"; releases below sequence {verified.floor} are refused" if verified.floor else ""
    return f"by {', '.join(verified.signers)}, sequence {verified.sequence}{floor}"


def _trial_text(trial: Trial) -> str:
    """Describe how the last trial ended, or that it is still running."""
    label = f"generation {trial.new}, {trial.digest[:16]}"
    if trial.seconds is not None:
        return f"{label}, on trial for {trial.seconds} s; if it is not finished, the next change takes it back"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(trial.began))
    again = trial.new == trial.old  # the same release was activated again, so there is nothing to undo
    failed = "was not healthy and stays" if again else "was taken back"
    ends = {"healthy": "was healthy", "failed": failed, "interrupted": "was interrupted and taken back"}
    return f"{label}, {ends[trial.state]} ({when})"


@declare.command()
@connection.slot_options
@declare.json_flag
@click.pass_obj
def rollback(console: Console, /, device: SlotOptions, *, as_json: bool) -> Result:
    from toolchain.device.deploy import roll_back
    from toolchain.device.lock import Owner

    with open_device(device.board(), device, console.say) as connected, connected.store.lock(Owner.here("rollback")):
        previous, started = roll_back(connected, console.say)
    text = f"{connected.store.place} runs {previous.name} {previous.digest[:16]} again"
    text += f"; {started.name} is healthy after {started.seconds:.1f} s" if started else ""
    document = {"slot": connected.store.slot, **dataclasses.asdict(previous)}
    document |= {"application": started, "waited": connected.store.waited}
    return Result(text, document, as_json)


@declare.command()
@connection.slot_options
@declare.json_flag
@click.pass_obj
def remove(console: Console, /, device: SlotOptions, *, as_json: bool) -> Result:
    """Its application is stopped, if devices.toml has a run table for the slot. Other slots are not touched."""
    from toolchain.device import deploy as deploying
    from toolchain.device.lock import Owner

    if not device.slot:
        raise InputError(
            "which slot? --slot is missing",
            details="the releases without a slot stay as long as the store",
            hint="`toolchain status` lists the slots of a device",
        )
    with open_device(device.board(), device, console.say) as connected, connected.store.lock(Owner.here("remove")):
        removed = [item.digest for item in connected.store.releases.generations()]
        deploying.remove(connected, console.say)
    document = {"host": connected.name, "slot": device.slot, "releases": removed, "waited": connected.store.waited}
    return Result(f"{connected.name} has no slot {device.slot} any more", document, as_json)
