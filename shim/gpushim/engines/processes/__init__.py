"""Engines that run here: their processes, programs and units, and what they answer."""
