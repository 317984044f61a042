"""From the engine's call of gpushim-runtime to the exec of the low-level runtime."""
