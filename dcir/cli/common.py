"""What all verbs share: exit codes, common options, the edge where errors become text, and output as text or JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dcir import errors
from dcir.destination import check_destination
from dcir.dynamic import parse_related
from dcir.options import LEVELS, VERIFY, parse_level
from dcir.targets import DEFAULT, known_targets

OK = 0
WRONG_RESULT = 1
USAGE = 2
ENVIRONMENT = 3
UNSUPPORTED = 4
MOST_THREADS = 4096

_EXIT_CODES: dict[type[errors.DcirError], int] = {
    errors.Unsupported: UNSUPPORTED,
    errors.OptionError: USAGE,
    errors.InvalidInput: USAGE,
    errors.InvalidModel: USAGE,
    errors.SessionInvalid: USAGE,
    errors.TypeMismatch: USAGE,
    errors.IndexOutOfRange: USAGE,
    errors.CompilerNotFound: ENVIRONMENT,
    errors.CompilerFailed: ENVIRONMENT,
    errors.CacheUnavailable: ENVIRONMENT,
    errors.MachineBusy: ENVIRONMENT,
    errors.ArtefactInvalid: ENVIRONMENT,
}
# Names come from model files and must not steer the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Verb(click.Command):
    """A command with --json and --debug, whose errors are printed without a traceback."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."))
        self.params.append(click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; what is wrong with them is an object, too, where one was asked for."""
        wants_object = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if wants_object:
                told = {"kind": type(error).__name__, "message": error.format_message(), "where": ctx.command_path}
                click.echo(json.dumps({"error": told | {"try": f"{ctx.command_path} --help", "details": []}}))
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; see `exit_code` for what an error turns into."""
        ctx.meta["dcir.json"] = ctx.params.pop("as_json")
        debug = ctx.params.pop("debug")
        try:
            self._check_files(ctx)
            return super().invoke(ctx)
        except (errors.DcirError, OSError) as error:
            if debug:
                raise
            if ctx.meta["dcir.json"]:
                click.echo(json.dumps({"error": _as_data(error)}))
            click.echo(clean(f"dcir: {type(error).__name__}: {error}"), err=True)
            ctx.exit(exit_code(error))

    def _check_files(self, ctx: click.Context) -> None:
        """Refuse an output that no file can be written to, or that is a file which the verb reads."""
        given = [ctx.params[p.name] for p in self.params if isinstance(p, click.Argument) and p.name in ctx.params]
        read = [path for value in given for path in (value if isinstance(value, tuple) else (value,))]
        files = [text.rpartition(":")[0] for text in map(str, read)]
        read += [file for file in files if file.endswith(".py")]
        for param in self.params:
            kind, path = param.type, ctx.params.get(param.name or "")
            if isinstance(kind, click.Path) and not (kind.exists or kind.dir_okay) and path is not None:
                check_destination(path, *read)


def exit_code(error: Exception) -> int:
    """1 wrong result, 2 usage, 3 environment, 4 unsupported."""
    if not isinstance(error, errors.DcirError):
        return ENVIRONMENT
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), WRONG_RESULT)


def emit(text: str, data: Any) -> None:
    """Print a result for people, or for programs with --json."""
    if wants_json():
        click.echo(json.dumps(data, indent=2, default=str))
    else:
        click.echo(clean(text))


def wants_json() -> bool:
    """Whether the running verb was given --json."""
    return bool(click.get_current_context().meta.get("dcir.json"))


def given(*names: str) -> list[str]:
    """Of the running verb's options with these parameter names those that somebody gave, as they are typed."""
    ctx = click.get_current_context()
    found = [p for p in ctx.command.params if p.name in names]
    return [p.opts[0] for p in found if ctx.get_parameter_source(p.name or "") is not ParameterSource.DEFAULT]


def clean(text: str) -> str:
    """A text without control characters other than line ends and tabs."""
    return _CONTROL.sub("�", text)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as aligned columns; the last column is not padded."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = (
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _read_level(ctx: click.Context, param: click.Parameter, value: object) -> int:
    level = parse_level(value)
    if not isinstance(level, int) or level not in LEVELS:
        raise click.BadParameter(f"{value!r} is not one of 0, 1, 2, 3, 4.", ctx, param)
    return level


def _read_shapes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, list[int | str]]:
    """Sizes by input name from texts like x=[8,3,224,224]; a word stands for a size that stays open, 2*n+1 for one that follows."""
    shapes: dict[str, list[int | str]] = {}
    for value in values:
        match = re.fullmatch(r"(.+)=\[?([^\[\]]*)\]?", value)
        if match is None:
            raise click.BadParameter(f"{value!r} does not look like x=[8,3,224,224].", ctx, param)
        words = [word.strip() for word in match[2].split(",") if word.strip()]
        for word in words:
            if not re.fullmatch(r"[0-9]+", word) and parse_related(word) is None:
                raise click.BadParameter(f"{word!r} is neither a size nor a name.", ctx, param)
        shapes[match[1]] = [int(word) if word.isdecimal() else word for word in words]
    return shapes


def _read_bounds(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int | None, int | None]]:
    """Bounds by name from texts like b=1..64; a bound may be left out."""
    bounds: dict[str, tuple[int | None, int | None]] = {}
    for value in values:
        match = re.fullmatch(r"(.+)=([0-9]{0,12})\.\.([0-9]{0,12})", value)
        if match is None:
            raise click.BadParameter(f"{value!r} does not look like b=1..64.", ctx, param)
        least, most = (int(word) if word else None for word in match.group(2, 3))
        if least is not None and most is not None and most < least:
            raise click.BadParameter(f"{value!r} has the lower bound last.", ctx, param)
        bounds[match[1]] = least, most
    return bounds


model = click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
source = click.argument("model", metavar="MODEL")
batch = click.option("--batch", type=click.IntRange(min=1), help="For a Python function that takes one.")
level = click.option(
    "-O",
    "level",
    metavar="LEVEL",
    callback=_read_level,
    default="4",
    show_default=True,
    help="Level of optimisation, 0 to 4.",
)
target = click.option(
    "--target", type=click.Choice(tuple(known_targets())), default=DEFAULT, show_default=True, help="What to generate."
)
verify = click.option(
    "--verify", type=click.Choice(VERIFY), default="off", show_default=True, help="Compare numbers after every pass."
)
strict = click.option("--strict", is_flag=True, help="Refuse operators that would run through torch.")
shapes = click.option(
    "--shape", "shapes", metavar="NAME=[SIZES]", callback=_read_shapes, multiple=True, help="Fix an input's sizes."
)


bounds = click.option(
    "--bound", "bounds", metavar="NAME=LEAST..MOST", callback=_read_bounds, multiple=True,
    help="Let a named size change from call to call.",
)  # fmt: skip
team_size = click.IntRange(1, MOST_THREADS)
threads = click.option("--threads", type=team_size, help="Size of the thread team. [as many as torch uses]")
plain = click.option("--plain", is_flag=True, help="No progress bar.")


class Finite(click.FloatRange):
    """A number from ``min`` up, other than infinity and NaN, which passes every comparison that refuses what is outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that a text says."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


def options(*decorators: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Several options at once, listed in the order of the help text."""

    def add(function: _Function) -> _Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def _as_data(error: Exception) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": type(error).__name__}
    if not isinstance(error, errors.DcirError):
        return data | {"message": str(error), "where": getattr(error, "filename", None), "try": None, "details": []}
    return data | {
        "message": error.message,
        "where": error.where,
        "try": error.hint,
        "details": [list(row) for row in error.details],
    }
