"""What the commands about CDI have in common: where specs are, and where a spec goes."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

import click

from gpushim.cdi import spec_text
from gpushim.cli import show
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.paths import host_files
from gpushim.paths.replace import replace

SPEC_DIRS_VARIABLE = "NVIDIA_CTK_CDI_SPEC_DIRS"


def words(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Split the values of an option at commas, for click; empty words are left out."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def spec_dirs(folders: list[str]) -> list[str]:
    result: list[str] = folders or policy.load(system.config_path())["cdi"]["spec-dirs"]
    return result


def put(spec: dict[str, Any], path: str, chosen: str) -> None:
    """Write a spec to a file, or to stdout if `path` is "" or "-".

    `chosen` is "json", "yaml" or ""; the path's extension takes precedence.
    """
    path = "" if path == "-" else path
    form, warning = spec_text.form_of(path, chosen)
    if warning:
        show.say(f"warning: {warning}", error=True)
    content = spec_text.render(spec, form)
    if not path:
        click.echo(content, nl=False)
        return
    try:
        _save(path, content)
    except OSError as error:
        raise GpushimError(f"{path} cannot be written: {error.strerror}") from None


def _save(path: str, content: str) -> None:
    """Write a file where no other user could change what its path means; makes missing directories."""
    with host_files.open_parent(os.path.abspath(path), make=True, output=True) as file:
        with contextlib.suppress(FileNotFoundError):
            status = file.status()
            if not stat.S_ISREG(status.st_mode):
                raise GpushimError(f"{path} is not a regular file")
            host_files.check_file(path, status)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=file.folder)
        try:
            replace(file.name, content.encode(), folder=folder)
        finally:
            os.close(folder)
