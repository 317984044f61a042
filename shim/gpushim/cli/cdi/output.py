"""What the commands about CDI have in common: where specs are, and where a spec goes."""

from __future__ import annotations

from typing import Any

import click

from gpushim import policy, stamp
from gpushim.cdi import publish, text
from gpushim.cli import show
from gpushim.errors import GpushimError

SPEC_DIRS_VARIABLE = "NVIDIA_CTK_CDI_SPEC_DIRS"


def words(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Split the values of an option at commas, for click: what is empty counts for nothing."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def spec_dirs(given: list[str]) -> list[str]:
    """Return the directories of specs: those given, else the policy's."""
    found: list[str] = given or policy.load(stamp.config_path())["cdi"]["spec-dirs"]
    return found


def put(spec: dict[str, Any], path: str, wanted: str) -> None:
    """Write a spec to a file, or to stdout if `path` is "" or "-".

    Args:
        spec: plain data.
        path: its extension decides about the format.
        wanted: "json", "yaml", or "" for whatever fits.
    """
    path = "" if path == "-" else path
    form, warning = text.form_of(path, wanted)
    if warning:
        show.say(f"warning: {warning}", error=True)
    content = text.render(spec, form)
    if not path:
        click.echo(content, nl=False)
        return
    try:
        publish.save(path, content)
    except OSError as error:
        raise GpushimError(f"{path} cannot be written: {error.strerror}") from None
