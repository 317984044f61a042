"""No test of NVIDIA's programs lists this machine, or reads its configuration: as with gpushim's own commands."""

from unit.gpushim.cli.conftest import host as host
