"""More of vulnerable.py: bounds on what an image has, and the kernel's limits behind them."""

from __future__ import annotations

from e2e import test_bounds, test_confine
from e2e.vulnerable import BOUNDS, Build

PRESTART = "hook/gpuhook/prestart.py"
BRINGS = test_bounds.test_what_an_image_brings
SAID = "(said in log) == "
CHEAP = "assert done."  # time or memory, whichever is seen first


def without(bound: str) -> Build:
    """Make a build without one bound on what an image has."""
    return Build({BOUNDS: f"{bound} = 1 << 30"}, BRINGS, SAID, {"name": bound})


BUILDS = {
    "T-bounds reads a loader's cache of any size": without("LOADER_CACHE"),
    "T-bounds takes any number of equal names": without("CACHE_EQUAL"),
    "T-bounds takes numbers of any length": without("CACHE_DIGITS"),
    "T-bounds walks links without end": without("WORDS"),
    # Both together are what once took ten seconds.
    "T-bounds a large cache of equal names": Build(
        {BOUNDS: "LOADER_CACHE = 16 << 20\nCACHE_EQUAL = 1 << 30"},
        test_bounds.test_an_image_whose_names_are_all_one,
        CHEAP,
    ),
    "T-bounds a hook without limits": Build(
        {PRESTART: "confine = lambda *_, **__: None"},
        test_confine.test_a_bound_that_is_missing,
        "done.code == 16",
        {"memory": "512 << 20"},
    ),
    "T-bounds a refresh with the hook's limits": Build(
        {"hook/gpuhook/standalone.py": "_real = inject\ndef inject(state):\n    confine()\n    _real(state)"},
        test_confine.test_a_refresh_has_no_limits_of_the_hooks,
        "max(started) < min(limited)",
    ),
    "T-bounds a limit that is a bug": Build(
        {PRESTART: "exhausted = None"},
        test_confine.test_a_bound_that_is_missing,
        "done.code == 16",
        {"memory": "64 << 20"},
    ),
}
