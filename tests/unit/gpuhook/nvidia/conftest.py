"""As for NVIDIA's other programs."""

from unit.gpushim.conftest import machine as machine
from unit.gpushim.nvidia.conftest import host as host
from unit.gpushim.nvidia.conftest import root as root
