"""Options that several commands share, in families; those that name a device are in `connection`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from toolchain.cli import assignments, completion, values
from toolchain.cli.console import Result
from toolchain.cli.gathering import option, record, single
from toolchain.cli.reports import JSON, JSON_OPTION, JSON_SETTINGS, JUNIT, PAGE, write_reports
from toolchain.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from toolchain.board import Board, Precision
    from toolchain.compile.request import BuildRequest
    from toolchain.device.deploy import Settings
    from toolchain.models import inputs
    from toolchain.models.request import Model
    from toolchain.pipeline.report import Report
    from toolchain.progress import Progress
    from toolchain.tuning.build.cluster.scheduler import Scheduler
    from toolchain.tuning.plan import Plan
    from toolchain.tuning.search import Tuner

_HOUR_S = 3600.0
PATH = click.Path(path_type=Path)


# --- the model and its inputs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """How a model is imported."""

    shapes: tuple[str, ...] = option(
        "--shape",
        multiple=True,
        metavar="NAME:1,3,224,224",
        help="Set the open dimensions of an input. small=NAME:1,3,224,224 is for one of several variants.",
    )
    dims: tuple[str, ...] = option(
        "--dim",
        multiple=True,
        metavar="NAME=SIZE",
        help="Set an open dimension by its name, in all inputs. 320,640 or 64:640:32 make a variant for each size.",
    )
    fixed: tuple[str, ...] = option(
        "--fix", multiple=True, metavar="NAME=VALUE", help="Replace an input by a constant, such as sr=16000."
    )
    seed: int = option("--seed", default=0, show_default=True, help="Seed of random weights and of random inputs.")
    states: tuple[str, ...] = option(
        "--state",
        multiple=True,
        metavar="INPUT=OUTPUT",
        help="Keep this output on the device, as the input of the next run; `auto` finds such pairs, `none` does not "
        "propose any.",
    )

    def model(self, source: str, input_options: InputFileOptions | None = None) -> Model:
        """Return a model, a zoo name or a file, with its inputs."""
        from toolchain.models.request import Model

        inputs = (input_options or InputFileOptions()).source(self.seed)
        given, fixed = assignments.parse_model_shapes(self.shapes, self.dims), assignments.parse_fixed(self.fixed)
        states = assignments.parse_states(self.states)
        return Model(source, given.shapes, inputs, fixed, given.dims, *states, variants=given.variants)

    def plain_model(self, source: str, input_options: InputFileOptions | None = None) -> Model:
        """Return a model with one set of shapes, as `model`.

        Raises:
            InputError: The options make several variants.
        """
        from toolchain.models import variants

        model = self.model(source, input_options)
        variants.check_plain(model)
        return model

    @property
    def shape_arguments(self) -> list[str]:
        """The options that decide on inputs and their shapes, for a command line."""
        options = (("--shape", self.shapes), ("--dim", self.dims), ("--fix", self.fixed), ("--state", self.states))
        return [argument for option, texts in options for text in texts for argument in (option, text)]


@dataclass(frozen=True)
class InputFileOptions:
    """Files of inputs, instead of random ones; a build that fits a network to its inputs reads them, too."""

    npz: Path | None = option(
        "--input", type=PATH, help="Inputs to use: an .npz file with one array for each input, or an .npy file."
    )
    image: Path | None = option(
        "--image",
        type=PATH,
        help="Picture to use as the input, by the model's own steps (--pre) or the usual ImageNet preprocessing.",
    )

    sound: Path | None = option(
        "--sound", type=PATH, help="WAV file to use as the input, by the model's own steps (--pre wav:rate=N)."
    )

    def source(self, seed: int) -> inputs.Source:
        """Return where the inputs come from: the files, or random numbers of this seed."""
        from toolchain.models import inputs

        return inputs.Source(self.npz, self.image, seed, sound=self.sound)

    @property
    def arguments(self) -> list[str]:
        """The same options for a command line."""
        flags = (("--input", self.npz), ("--image", self.image), ("--sound", self.sound))
        return [argument for option, path in flags if path for argument in (option, str(path))]


@dataclass(frozen=True)
class InputOptions(InputFileOptions):
    """Inputs, and the names of the classes of the output."""

    labels: Path | None = option(
        "--labels", type=PATH, help="File of class names, one on each line, for a table of the top five."
    )


# --- kernels and tuning ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelOptions:
    """Which kernel templates and which precision a build may use."""

    without: tuple[str, ...] = option(
        "--without",
        multiple=True,
        metavar="TEMPLATE",
        help="Do not use this kernel template; `all` leaves out every template.",
    )
    no_winograd: bool = option("--no-winograd", is_flag=True, help="Same as --without winograd.")
    float16: bool = option("--float16", is_flag=True, help="Compute in half precision; the device must support it.")
    half_sums: bool = option(
        "--half-sums",
        is_flag=True,
        help="Same as --float16, and also add in half precision where this cannot overflow. Less exact.",
    )
    bfloat16: bool = option(
        "--bfloat16", is_flag=True, help="Multiply in bfloat16 and add in float32, on x86-64 CPUs. Less exact."
    )
    weights: Literal["int8", "int4"] | None = option(
        "--weights",
        type=click.Choice(["int8", "int4"]),
        help="Round the weights of large fully connected layers, which stay so in memory; on CPUs. Less exact.",
    )

    @property
    def precision(self) -> Precision:
        """The arguments of `BoardOptions.board`.

        Raises:
            InputError: Two of the options exclude each other.
        """
        float16 = self.float16 or self.half_sums
        if float16 and self.bfloat16:
            raise InputError(
                "--bfloat16 cannot be combined with --float16 and --half-sums",
                hint="--bfloat16 is for x86-64 CPUs, --float16 for GPUs and Arm CPUs, --half-sums for GPUs",
            )
        if self.weights and (float16 or self.bfloat16):
            raise InputError(
                f"--weights {self.weights} cannot be combined with --float16, --half-sums and --bfloat16",
                hint="--weights leaves the data of layers in float32; choose one of the options",
            )
        precision: Precision = {"float16": float16, "half_sums": self.half_sums, "bfloat16": self.bfloat16}
        return {**precision, "weights": self.weights} if self.weights else precision

    @property
    def precision_arguments(self) -> list[str]:
        """The same options for a command line."""
        if self.half_sums:
            return ["--half-sums"]
        options = {"--float16": self.float16, "--bfloat16": self.bfloat16}
        weights = ["--weights", self.weights] if self.weights else []
        return [*(option for option, is_set in options.items() if is_set), *weights]

    def excluded_templates(self, board: Board) -> tuple[str, ...]:
        """Return the sorted names of the templates that the build must not use.

        Raises:
            InputError: There is no such template.
        """
        templates = {*self.without, *(["winograd"] if self.no_winograd else [])}
        if not templates:  # the import of TVM below takes seconds
            return ()
        from toolchain.backends import backend_of

        available = backend_of(board).template_names
        for name in sorted(templates - {"all", *available}):
            hint = did_you_mean(name, available) or "name one of these, or `all`"
            raise InputError(f"there is no template {name!r}", details=f"templates: {', '.join(available)}", hint=hint)
        return tuple(sorted(available if "all" in templates else templates))


@dataclass(frozen=True)
class CompileOptions:
    """Which tuning records and which kernels a build uses."""

    records: Path | None = option(
        "--records",
        type=PATH,
        help="Tuning records to apply; `shipped` means only those of the toolchain. Default: yours, or the project's.",
    )
    no_records: bool = option("--no-records", is_flag=True, help="Do not apply tuning records.")
    emulated: bool = option(
        "--emulated", is_flag=True, help="Apply records that an emulator measured, instead of a real board."
    )
    modelled: bool = option(
        "--modelled", is_flag=True, help="Apply records of `tune --modelled`, instead of those of a real board."
    )
    max_ram: int | None = option(
        "--max-ram",
        metavar="SIZE",
        type=values.Size(),
        help="Fail if a process that runs the model needs more memory, such as 64M, as planned.",
    )
    kernels: KernelOptions = record(KernelOptions)

    def request(
        self,
        model: Model,
        board: Board,
        progress: Progress,
        toolchain: str | None,
        *,
        emulated: bool = False,
        threads: int | None = None,
    ) -> BuildRequest:
        """Return what to build.

        Args:
            model: The model and its inputs.
            board: The board type, resolved.
            progress: Called with each stage.
            toolchain: Where to link, `container` or `host`; None for that of the board file.
            emulated: Whether the device is an emulator.
            threads: Number of threads of the model; None for that of the board file.

        Raises:
            InputError: The options cannot be combined, or there are no such templates or records.
        """
        from toolchain.compile.request import BuildRequest
        from toolchain.records import SHIPPED

        if self.records and self.no_records:
            raise InputError("--records and --no-records cannot be combined", hint="leave one of them out")
        others = {"--emulated": self.emulated, "--no-records": self.no_records}
        others["--records shipped"] = str(self.records) == SHIPPED
        if self.modelled and (conflicting := [name for name, is_set in others.items() if is_set]):
            raise InputError(f"--modelled and {conflicting[0]} cannot be combined", hint="leave one of them out")
        request = BuildRequest(
            model,
            board,
            progress,
            toolchain or "",
            self.records,
            tuned=not self.no_records,
            emulated=self.modelled or emulated or board.emulated or self.emulated,
            modelled=self.modelled,
            without=self.kernels.excluded_templates(board),
            threads=threads or 0,
            max_memory=self.max_ram or 0,
        )
        if self.modelled and not request.modelled_as:
            raise InputError(f"there are no modelled records for board {board.name}", hint="leave --modelled out")
        return request


@dataclass(frozen=True)
class SearchOptions:
    """How to search for kernels and to measure candidates."""

    tuner: Tuner = option(
        "--tuner",
        type=click.Choice(["evolutionary-xgb", "evolutionary-random", "random", "grid"]),
        default="evolutionary-xgb",
        show_default=True,
        help="Search method: evolution with a learned cost model, evolution with random choices, random, or in order.",
    )
    trials: int = option(
        "--trials", default=500, show_default=True, type=click.IntRange(min=1), help="Number of trials of the run."
    )
    trials_per_task: int = option(
        "--trials-per-task",
        default=0,
        type=click.IntRange(min=0),
        help="Largest number of trials of one task. Default: no limit.",
    )
    early_stop: int = option(
        "--early-stop",
        default=0,
        type=click.IntRange(min=0),
        help="End a task after N trials without an improvement. Default: never.",
    )
    time_budget: float = option(
        "--time-budget",
        metavar="SECONDS",
        default=0.0,
        type=click.FloatRange(min=0.0),
        help="Start no new round after SECONDS. Default: no limit.",
    )
    number: int = option(
        "--number", default=3, show_default=True, type=click.IntRange(1, 10000), help="Runs in one sample."
    )
    repeat: int = option(
        "--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Samples in one trial."
    )
    min_repeat_ms: int = option(
        "--min-repeat-ms",
        metavar="MS",
        default=20,
        show_default=True,
        type=click.IntRange(0, 10000),
        help="Shortest time of a sample in milliseconds.",
    )
    cooldown: float = option(
        "--cooldown",
        metavar="SECONDS",
        default=0.0,
        type=click.FloatRange(0.0, 600.0),
        help="Pause after each trial. Default: none.",
    )
    cache_flush: bool = option("--cache-flush", is_flag=True, help="Flush the CPU's caches before each sample.")
    timeout: float = option(
        "--timeout",
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        type=click.FloatRange(0.1, _HOUR_S),
        help="Longest time to run a candidate.",
    )
    build_timeout: float = option(
        "--build-timeout",
        metavar="SECONDS",
        default=30.0,
        show_default=True,
        type=click.FloatRange(1.0, _HOUR_S),
        help="Longest time to compile a candidate.",
    )

    def plan(self, board: Board, seed: int, threads: int | None) -> Plan:
        """Return the plan of a tuning run.

        Args:
            board: The board type.
            seed: Seed of the search.
            threads: Number of threads of a kernel; None for that of the board file.
        """
        from toolchain.tuning.plan import Plan
        from toolchain.tuning.trials import Options

        return Plan(
            tuner=self.tuner,
            trials=self.trials,
            seed=seed,
            per_task=self.trials_per_task,
            early_stop=self.early_stop,
            budget_s=self.time_budget,
            options=Options(
                number=self.number,
                repeat=self.repeat,
                min_repeat_ms=self.min_repeat_ms,
                cooldown_s=self.cooldown,
                cache_flush=self.cache_flush,
                timeout_s=self.timeout,
                build_timeout_s=self.build_timeout,
                threads=threads or board.threads,
                device=board.target.kind,
            ),
        )


@dataclass(frozen=True)
class BuilderOptions:
    """The Dask cluster that compiles candidates."""

    builders_at: str | None = option(
        "--builders", metavar="dask://HOST:PORT", help="Compile candidates on the workers of this Dask scheduler."
    )
    builders_ca: Path | None = option(
        "--builders-ca", type=PATH, help="TLS: CA certificates of the cluster. Default: Dask's configuration."
    )
    builders_cert: Path | None = option(
        "--builders-cert", type=PATH, help="TLS: your certificate. Default: Dask's configuration."
    )
    builders_key: Path | None = option(
        "--builders-key", type=PATH, help="TLS: the key of your certificate. Default: Dask's configuration."
    )
    builders_plain: bool = option(
        "--builders-plain",
        is_flag=True,
        help="Do not use TLS. Anyone who can reach the scheduler can then run code on this machine and on the workers.",
    )

    def scheduler(self) -> Scheduler | None:
        """Return the scheduler of the cluster; None without --builders.

        Raises:
            InputError: The address is not valid, or another option needs --builders.
        """
        others: dict[str, Any] = {"--builders-plain": self.builders_plain, "--builders-ca": self.builders_ca}
        others |= {"--builders-cert": self.builders_cert, "--builders-key": self.builders_key}
        if self.builders_at is None:
            if unused := [name for name, value in others.items() if value]:
                raise InputError(f"{unused[0]} needs --builders", hint="add --builders dask://HOST:PORT")
            return None
        from toolchain.tuning.build.cluster.scheduler import Access, parse

        files = (self.builders_ca, self.builders_cert, self.builders_key)
        return parse(self.builders_at, Access(*files, plain=self.builders_plain))


# --- measurements and reports ------------------------------------------------------------------------------------


def budget(seconds: float, what: str = "the model", **settings: Any) -> Any:
    """Return the field for the seconds of a measurement."""
    return option(
        "--budget",
        metavar="SECONDS",
        default=seconds,
        show_default=True,
        type=click.FloatRange(0.0, _HOUR_S),
        help=f"Measure {what} for this long.",
        **settings,
    )


@dataclass(frozen=True)
class MeasureOptions:
    """How to measure a model on a device."""

    budget: float = budget(10.0)
    threads: int | None = option(
        "--threads",
        type=click.IntRange(1, 1024),
        help="Number of threads. Default: as in the board file, or one for each CPU.",
    )
    no_pin: bool = option("--no-pin", is_flag=True, help="Do not pin threads to CPUs.")

    def settings(self, labels: Path | None, tolerance: float | None = None, samples: int = 1) -> Settings:
        """Return the settings of a deploy or a benchmark.

        Args:
            labels: File of class names.
            tolerance: Largest relative difference of the outputs; None for that of the reference.
            samples: Number of random inputs to compare.
        """
        from toolchain.device.deploy import Settings

        return Settings(self.budget, self.threads or 0, tolerance, not self.no_pin, labels, samples)


@dataclass(frozen=True)
class TurnOptions(MeasureOptions):
    """How to measure two models in turns, each for half of the budget."""

    budget: float = budget(20.0)


def one_variant() -> Any:
    """Return the field for the one set of shapes that a command measures."""
    return option(
        "--variant",
        metavar="NAME",
        default="",
        help="The variant to measure of a release with several; one that was built for these shapes may be the other.",
    )


def html() -> Any:
    """Return the field for the path of the HTML page."""
    return option("--html", type=PATH, help="Write the report as an HTML page.")


def cost(what: str) -> Any:
    """Return the field for a cost estimate; `what` begins its help."""
    return option(
        "--cost",
        is_flag=True,
        help=f"{what}, estimated by a model of the board's GPU; the first time takes seconds for each kernel.",
    )


@dataclass(frozen=True)
class ReportOptions:
    """The files of the report of a measurement."""

    json_path: Path | None = option(JSON_OPTION, **JSON_SETTINGS)
    junit_path: Path | None = option("--junit", type=PATH, help="Write the result as JUnit XML for CI.")
    html_path: Path | None = html()

    def write(self, report: Report, command: str) -> Result:
        """Write a report of a command to its files; return what to print."""
        from toolchain.pipeline.pages import measured

        page = measured.page(report, command)
        others = {self.junit_path: lambda: measured.junit(report), self.html_path: lambda: page.html().encode()}
        return write_reports(Result(page.printed(), report.document()), self.json_path, others)


PAGES = {"--html": PAGE}
"""The report that `html` names, with its kind."""
REPORTS = {"--json": JSON, "--junit": JUNIT, **PAGES}
"""The reports that `ReportOptions` name, with their kinds."""


def tolerance() -> Any:
    """Return the field for the largest relative difference of the outputs."""
    return option(
        "--tolerance",
        metavar="NUMBER",
        type=values.Limit(min=0.0),
        help="Largest allowed relative difference of the outputs.",
    )


def samples(what: str) -> Any:
    """Return the field for the number of random inputs to compare with the reference; `what` is its help."""
    return option("--samples", default=1, show_default=True, type=click.IntRange(1, 10_000), help=what)


def unchecked() -> Any:
    """Return the field for accepting a package without its reference."""
    return option(
        "--unchecked",
        is_flag=True,
        help="Also accept a package without reference outputs. Its results cannot be verified.",
    )


# --- options of several commands that stand alone ----------------------------------------------------------------

Rule = Literal["model", "package", "path"]
"""When a name means a path on this machine, and not the zoo's network of that name.

`model`: if it is a file; `package`: if it is a package or a bundle as well; `path`: always.
"""


def explain_name(rule: Rule) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of a parameter that names models: it reports how an ambiguous name is understood."""

    def explain(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        for name in [value] if isinstance(value, str) else value or ():
            if not Path(name).exists():
                continue  # it is not ambiguous, and the import of the zoo takes a while
            from toolchain.models import zoo
            from toolchain.pipeline.source import is_built

            built = rule == "path" or (rule == "package" and is_built(name))
            console = context.find_root().obj
            if console and (text := zoo.ambiguity(name, built=built)):
                console.say(text)
        return value

    return explain


model_argument = click.argument(
    "source", metavar="MODEL", shell_complete=completion.models, callback=explain_name("model")
)
shapes = single(ModelOptions, "shapes")
dims = single(ModelOptions, "dims")
fixed = single(ModelOptions, "fixed")


def toolchain() -> Any:
    """Return the field for where to link libraries; None for what the board file has."""
    return option(
        "--toolchain",
        type=click.Choice(["container", "host", "zig"]),
        help="Compiler to link with: in the container image, on this machine, or the package ziglang, the same on"
        " every host. Default: as in the board file.",
    )
