"""The ``fusewire`` command: one file per subcommand, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "bench": "Time a model on every installed engine, check the answers, and pick the best.",
    "eval": "Score every engine, exact and in reduced precision, on samples of your own.",
    "explain": "Show how a model runs and why: by region, node and engine.",
    "run": "Run a model on given or generated inputs.",
    "show": "Show the inputs, outputs, ops, parameters, flops and dynamic dims of a model.",
    "fuse": "Show which nodes of a model become one kernel, and why others do not.",
    "compile": "Write a model's plan and artifacts to one file, or kernels for a device.",
    "tune": "Time models on engines, here or on the machines of a Ray cluster, and record it.",
    "map": "Run a model on every row of Parquet files, here or on a Ray cluster.",
    "check": "Fail if bundles, models or engines differ from a lock file, and name the field.",
    "diff": "Show the fields in which two lock files differ.",
    "serve": "Serve models over the Open Inference Protocol: REST and gRPC.",
    "ops": "List every op by family, with its dtypes and cases.",
    "backends": "List every backend with its version and state, and what is missing.",
    "conform": "Run every sample of every op on a backend, in every dtype, without fallback.",
    "devices": "List the devices of every backend, with their properties.",
    "cache": "List, explain, verify, prune, export or import what is kept between runs.",
    "store": "Share records with other machines, signed: push, pull, verify, gc, keygen, signers.",
    "quarantine": "List engines that are not tried again for a model, and why; lift that.",
    "doctor": "Check the machine, the packages and every backend.",
}


class _Lazy(click.Group):
    """Import a subcommand's file only to run it; help texts come from ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"fusewire.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; exit with 2 for a wrong option and with 1 for any other error.

        Errors name things of the model, so they are escaped.
        """
        from fusewire.cli.advice import for_commands
        from fusewire.errors import FusewireError, OptionsError, RegistryError, visible

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            # What a shell reports for a program that Ctrl-C ended.
            raise click.exceptions.Exit(130) from None
        except FusewireError as error:
            # Who asks for what is not there made a mistake on the command line.
            is_usage = isinstance(error, RegistryError | OptionsError)
            kind = click.UsageError if is_usage else click.ClickException
            raise kind(visible(for_commands(str(error)))) from error
        except click.ClickException as error:
            said = error.format_message()
            if visible(said) == said:
                raise
            if isinstance(error, click.UsageError):
                raise click.UsageError(visible(said), error.ctx) from error
            raise click.ClickException(visible(said)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fusewire")
def main() -> None:
    """Run a tensor program on the best engine for each part of it."""
