"""``parties conformance``."""

from __future__ import annotations

from pathlib import Path

import click

from parties import conformance as suite
from parties.commands.errors import EXIT_FAILED, EXIT_OK, MistakeError
from parties.commands.options import DURATION_TYPE


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--service", default="conformance", show_default=True, help="The service that the client reports for.")
@click.option("--duration", type=DURATION_TYPE, default="5s", show_default=True, help="How long the client runs.")
@click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Where to listen.  [default: a private path]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def conformance(command: tuple[str, ...], service: str, duration: int, socket_path: Path | None, *, as_json: bool) -> int:
    """Run COMMAND, a client of the histogram socket, and check every message that it sends.

    The client finds the socket in $PARTIES_HISTOGRAM_SOCKET and the service in $PARTIES_SERVICE; {socket} and {service} in its
    arguments are filled in. Exit code 0: it conforms; 1: it does not; 2: it could not be tried.

    \b
    Examples:
      parties conformance -- ./my-client --socket {socket}
      parties conformance --duration 30s --json -- python client.py
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    try:
        verdict = suite.run(command, service=service, duration_ns=duration, socket_path=socket_path)
    except suite.ConformanceError as error:
        raise MistakeError(str(error)) from error
    click.echo(verdict.to_json() if as_json else str(verdict))
    return EXIT_OK if verdict.conforms else EXIT_FAILED
