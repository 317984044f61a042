"""`gpushim cdi transform`: a CDI spec for another place."""

from __future__ import annotations

import click

from gpushim.cdi import form, spec_text
from gpushim.cdi import transform as moves
from gpushim.cli.cdi import output
from gpushim.cli.show import Commands
from gpushim.ground.errors import GpushimError
from gpushim.oci import hookargs


@click.group(cls=Commands)
def transform() -> None:
    """Rewrite a CDI spec."""


@transform.command()
@click.option("--from", "old", required=True, metavar="DIRECTORY", help="The directory that paths begin with now.")
@click.option("--to", "new", required=True, metavar="DIRECTORY", help="What they are to begin with.")
@click.option(
    "--relative-to",
    "side",
    type=click.Choice([hookargs.HOST, hookargs.CONTAINER]),
    default=hookargs.HOST,
    show_default=True,
    help="Whether these are paths of the host or of containers.",
)
@click.option("--input", "source", default="-", metavar="FILE", help="The spec; - is stdin. [default: -]")
@click.option("--output", "target", default="", metavar="FILE", help="Where the result goes. [default: stdout]")
def root(old: str, new: str, side: str, source: str, target: str) -> None:
    """Move the paths of a spec from below one directory to below another."""
    for path in (old, new):
        if not path.startswith("/"):
            raise click.UsageError(f"{path or 'an empty path'} is not absolute")
    spec, kind = spec_text.read(source)
    try:
        form.check(spec)
    except form.FormError as error:
        raise GpushimError(f"{'stdin' if source == '-' else source}: {error}") from None
    moves.root(spec, old, new, side)
    output.put(spec, target, "" if target not in ("", "-") else kind)
