"""Settings for every test: hypothesis without a wall-clock deadline, which a busy machine would miss."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gpushim", deadline=None, print_blob=True)
settings.load_profile("gpushim")
