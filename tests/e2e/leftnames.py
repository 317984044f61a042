"""What stays of gpushim after a removal."""

from __future__ import annotations

PROGRAMS = "/usr/bin/gpushim-hook /usr/bin/gpushim-runtime"
KEPT = "/etc/tmpfiles.d/gpushim-removed.conf /run/gpushim-removed"
REFUSED = "gpushim was removed, and this container may ask for a GPU"
