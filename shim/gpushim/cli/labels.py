"""`gpushim labels`: print the labels of this node."""

from __future__ import annotations

import click

from gpushim.cli import device_plugin, show


@click.command()
@show.format_option("table", "json")
def labels(form: str) -> None:
    """Print the labels that this node would have in a cluster.

    They are those of NVIDIA's GPU feature discovery, by config.toml and the variables of gpushim-device-plugin as
    they are here: lines for a file in node-feature-discovery's features.d, or JSON.
    """
    device_plugin.become("--labels", f"--format={form}")
