"""``fusewire serve MODELS...``: answer requests over the Open Inference Protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusewire.cli.model import compile_options
from fusewire.errors import UnavailableError, install_advice
from fusewire.options import Options

if TYPE_CHECKING:
    from fusewire.serve.model import ModelConfig

_MILLISECONDS = 1000.0
_MEGABYTE = 1 << 20
# What measuring tries at most.
_MOST_ROWS = 32


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODELS...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535),
    help="Port for REST; 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--grpc-port", default=8001, show_default=True, type=click.IntRange(0, 65535),
    help="Port for gRPC; 0 takes a free one.",
)  # fmt: skip
@click.option("--no-grpc", is_flag=True, help="Serve REST only.")
@click.option(
    "--replicas", default=1, show_default=True, type=click.IntRange(1, 64),
    help="Processes that run each model.",
)  # fmt: skip
@click.option(
    "--batch", default="auto", show_default=True, metavar="N",
    help="Most rows in a batch; auto measures it where the sizes are known. 1 batches nothing.",
)  # fmt: skip
@click.option(
    "--delay", default=2.0, show_default=True, type=click.FloatRange(0, 1000),
    help="Milliseconds that the oldest request of a batch waits for others.",
)  # fmt: skip
@click.option("--pad", is_flag=True, help="Fill batches up to a power of two.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,48,320",
    help="Shape of an input to prepare for.",
)  # fmt: skip
@click.option(
    "--queue", default=1024, show_default=True, type=click.IntRange(1),
    help="Requests of a model that may wait.",
)  # fmt: skip
@click.option(
    "--max-body", default=64, show_default=True, type=click.IntRange(1, 1024),
    help="Megabytes that a request may have.",
)  # fmt: skip
@click.option(
    "--timeout", default=60.0, show_default=True, type=click.FloatRange(0.001),
    help="Seconds that a request may take.",
)  # fmt: skip
@click.option(
    "--watch", default=1.0, show_default=True, type=click.FloatRange(0),
    help="Seconds between looks at the model files for a reload; 0 never looks.",
)  # fmt: skip
@click.option(
    "--releases", is_flag=True,
    help="Serve only bundles that are signed as releases of the model's name, none older than one "
    "seen.",
)  # fmt: skip
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Host name that clients use, besides addresses and localhost; * allows any.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE",
    help="File with a token that requests must send (default: FUSEWIRE_SERVE_TOKEN).",
)  # fmt: skip
@click.option(
    "--load-token-file", type=click.Path(path_type=Path), metavar="FILE",
    help="File with a token that loading models needs (default: FUSEWIRE_SERVE_LOAD_TOKEN).",
)  # fmt: skip
@click.option("--seed", default=0, help="Seed for generated inputs.")
@click.option(
    "--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"])
)
@compile_options(fallback="allow")
def command(models: tuple[str, ...], options: Options, **given: Any) -> None:
    """Serve models over the Open Inference Protocol: REST and gRPC."""
    try:
        from fusewire.serve.access import LOAD_TOKEN, TOKEN, Access, read_token
        from fusewire.serve.limits import ServeLimits
        from fusewire.serve.logs import start_logging
        from fusewire.serve.server import InferenceServer, ServerConfig, serve
    except ImportError as error:
        raise UnavailableError(
            f"serve needs the package {error.name}. {install_advice('server')}"
        ) from error
    configs = _configs(models, options, given)
    body, seconds = given["max_body"] * _MEGABYTE, given["timeout"]
    limits = ServeLimits(body, queue=given["queue"], request_seconds=seconds)
    access = Access(
        given["hosts"],
        read_token(given["token_file"], TOKEN),
        read_token(given["load_token_file"], LOAD_TOKEN),
    )
    start_logging(given["log_level"])
    host, watch = given["host"], given["watch"]

    def started(server: InferenceServer) -> None:
        places = ", ".join(f"{kind} {host}:{place}" for kind, place in server.ports.items())
        click.echo(f"Serving {', '.join(c.name for c in configs)} on {places}.")

    grpc_port = None if given["no_grpc"] else given["grpc_port"]
    config = ServerConfig(host, given["port"], grpc_port, watch_seconds=watch)
    serve(configs, config, limits, started, access)


def _configs(
    models: tuple[str, ...], options: Options, given: Mapping[str, Any]
) -> list[ModelConfig]:
    from fusewire.serve.model import ModelConfig

    batch, shapes = given["batch"], given["shapes"]
    rows = None if batch == "auto" else _number("--batch", batch)
    options = replace(
        options,
        isolate="never" if options.isolate == "never" else "always",
        # A batch that hangs runs again, one request at a time, before its requests are late.
        deadline=min(options.deadline, given["timeout"] / 4),
        # Where sizes are known, engines are compared before the first request.
        start="measured" if shapes else "now",
    )
    configs = [
        ModelConfig(
            name,
            path,
            options,
            given["replicas"],
            rows,
            rows or _MOST_ROWS,
            given["delay"] / _MILLISECONDS,
            given["pad"],
            tuple(_shape(text) for text in shapes),
            name if given["releases"] else None,
        )
        for name, path in map(_named, models)
    ]
    plain = [
        config.source for config in configs if config.release and not _is_bundle(config.source)
    ]
    if plain:
        raise click.UsageError(
            f"--releases is for bundles, which are signed; {plain[0]} is not one."
        )
    if len({config.name for config in configs}) < len(configs):
        raise click.UsageError("Two models have the same name. Give NAME=FILE.")
    return configs


def _named(text: str) -> tuple[str, Path]:
    """Read FILE or NAME=FILE."""
    name, equals, path = text.partition("=")
    file = Path(path if equals else text)
    name = name if equals else file.stem
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
        raise click.UsageError(f"{name!r} cannot be part of a path. Give NAME=FILE.")
    if not file.exists():
        raise click.UsageError(f"{file} does not exist.")
    return name, file


def _is_bundle(path: Path) -> bool:
    from fusewire.records.bundles import ENDING

    return path.suffix == ENDING


def _number(option: str, text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1 << 16:
        raise click.UsageError(f"{option} {text}: expected a number of rows, or auto.")
    return int(text)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, dims = text.partition("=")
    parts = dims.split(",")
    if not equals or not all(part.strip().isdigit() for part in parts):
        raise click.UsageError(f"--shape {text}: expected NAME=1,3,48,320.")
    return name, tuple(map(int, parts))
