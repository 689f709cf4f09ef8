"""The programs `dcir` and `dcir-compile`; a verb's file is imported when the verb is used."""

from __future__ import annotations

import importlib
from importlib.metadata import version

import click

_VERBS = {
    "compile": "Compile an ONNX file to one .dcir file.",
    "run": "Run a model on arrays from .npy files.",
    "bench": "Measure a model, next to other ways to run it.",
    "profile": "Measure every kernel of a model's calls.",
    "roofline": "Show a model's kernels under the ceilings of this machine.",
    "plan": "Plan how a model's kernels share the threads, and compare settings.",
    "scaling": "Predict data-parallel training of a model on many processes.",
    "tune": "Measure alternatives of a model's kernels, and keep the fastest.",
    "check": "Compare a model's results with PyTorch's.",
    "explain": "Say what was done to a model, what was refused, and why.",
    "view": "Show all that became of a model as a page, and what else it could be.",
    "passes": "List the passes of a level.",
    "cache": "Look after the cache of compiled code.",
    "machine": "Measure once what this machine can do at most.",
    "doctor": "Check compiler, libraries and cache on this machine.",
}


class _LazyGroup(click.Group):
    """Knows the verbs by name and one line of help, so that the help text costs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which people need them."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb."""
        if cmd_name not in _VERBS:
            return None
        command = importlib.import_module(f"dcir.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"dcir {version('dcir')}")
        ctx.exit()


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def main() -> None:
    """A data-centric deep-learning compiler.

    Exit codes: 0 ok, 1 wrong result, 2 usage, 3 environment, 4 unsupported.
    """


def compile_main() -> None:
    """The program `dcir-compile`: the verb `compile` under its own name."""
    from dcir.cli.compile import command

    command.main(prog_name="dcir-compile")
