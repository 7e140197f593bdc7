"""The ``fusewire`` command: one file per subcommand, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "bench": "Time and judge a model on every engine that is installed, and show which is best.",
    "explain": "Show how a model is run, and why: by region, node and engine.",
    "run": "Run a model on inputs that are given or made up.",
    "show": "Show inputs, outputs, ops, parameters, flops and dynamic dims of a model.",
    "fuse": "Show which nodes of a model become one kernel, and which do not and why.",
    "compile": "Make the kernels of a model for a machine that need not be here, as files.",
    "ops": "List every op by family, with its dtypes and cases.",
    "backends": "List backends, installed and not, with versions and reasons.",
    "conform": "Run every op, sample and dtype on a backend, without fallback.",
    "devices": "List the devices of every backend, with what is known of them.",
    "cache": "List, explain, check, shrink and carry what is remembered between runs.",
    "doctor": "Check the machine, the packages and every backend.",
}


class _Lazy(click.Group):
    """Imports a subcommand's file only to run it; help texts come from ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"fusewire.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fusewire")
def main() -> None:
    """Run a tensor program on the best engine there is for each part of it."""
