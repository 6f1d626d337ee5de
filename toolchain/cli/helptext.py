"""The help of commands: options under headings by subject, and metavars that describe the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.types import OptionHelpExtra

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_MANY = 12  # options that are still read in one list

DEVICE, MODEL, COMPILATION = "Device", "Model and inputs", "Compilation"
VERIFICATION, MEASUREMENT, LIMITS = "Verification", "Measurement", "Comparison"
RATE = "At the rate of an application"
TUNING, TRIALS, BUILDERS = "Tuning", "Measuring a candidate", "Builders (Dask)"
QUANTIZATION, ACCURACY = "Quantization", "Accuracy"
FLEET, ROLLOUT, REGISTRY, RESULTS = "Fleet", "Roll-out", "Registry", "Results"

_SUBJECTS = {
    DEVICE: "--board --host --place --devices --root --identity --ssh-config --known-hosts --slot --wait",
    FLEET: "--fleet --inventory --board-var",
    ROLLOUT: "--waves --parallel --stop-after --success-threshold --roll-back --state",
    LIMITS: "--base --least --worst --confidence --peak-memory --load-time --package-size --retrained"
    " --allow-emulated --metric --most-lost",
    MODEL: "--shape --dim --fix --state --variant --seed --input --stream --steps --image --crops --sound --pre --post"
    " --labels --data --limit --preprocess --postprocess --pictures --model --compiled",
    TUNING: "--tuner --trials --trials-per-task --early-stop --time-budget --op --fresh --boards --tracker --key"
    " --prune --no-compare",
    TRIALS: "--number --repeat --min-repeat-ms --cooldown --cache-flush --timeout --build-timeout",
    COMPILATION: "--toolchain --records --no-records --emulated --modelled --without --no-winograd --float16"
    " --half-sums --bfloat16 --weights --gpu --cl-option --cost --max-ram",
    QUANTIZATION: "--calibration --method --exclude",
    ACCURACY: "--min-snr",
    VERIFICATION: "--tolerance --samples --reference --evaluate --unchecked",
    MEASUREMENT: "--beside --budget --rounds --round-ms --runs --threads --no-pin --energy --against",
    RATE: "--p999 --period --for --deadline --load --fifo --mlock",
    BUILDERS: "--builders --builders-ca --builders-cert --builders-key --builders-plain",
    REGISTRY: "--ca --plain-http --username --password-stdin",
    RESULTS: "--output --supported-until --report --with-library --vex --json --junit --html --trace",
}
"""The options of each subject by their long names, in the order of the help."""
_SUBJECT_OF = {word: subject for subject, words in _SUBJECTS.items() for word in words.split()}
_OTHERS = "Other options"


class Option(click.Option):
    """An option with a subject, which is its heading in the help.

    Args:
        names: As for click's own options.
        subject: The subject; by default that of its name in the table above.
        settings: As for click's own options.
    """

    def __init__(self, *names: Any, subject: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.subject = subject or next((_SUBJECT_OF[name] for name in self.opts if name in _SUBJECT_OF), "")

    def make_metavar(self, ctx: click.Context) -> str:
        """Return N for a number and FILE for a path, unless a metavar is declared."""
        if self.metavar is None and isinstance(self.type, click.types.IntParamType):
            return "N"
        if self.metavar is None and isinstance(self.type, click.Path):
            return "FILE"
        return super().make_metavar(ctx)

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Leave out the range, which the error message has; show whole numbers without a fraction."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        if (default := extra.get("default", "")).endswith(".0"):
            extra["default"] = default.removesuffix(".0")
        return extra


def option(*names: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds one option to a command: as `click.option`, with a `subject`."""
    return click.option(*names, cls=Option, **settings)


class Command(click.Command):
    """A command whose options are grouped by subject where there are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of their subjects, in the order of the table; others come last."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and not param.hidden]
        if len(params) <= _MANY + 1:  # and --help
            super().format_options(ctx, formatter)
            return
        groups: dict[str, list[click.Option]] = {title: [] for title in (*_SUBJECTS, _OTHERS)}
        for param in params:
            groups[getattr(param, "subject", "") or _OTHERS].append(param)
        for title, members in groups.items():
            if records := list(filter(None, (param.get_help_record(ctx) for param in members))):
                with formatter.section(title):
                    formatter.write_dl(records)
