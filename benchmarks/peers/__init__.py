"""Engines that do the same round, each a process of its own environment."""
