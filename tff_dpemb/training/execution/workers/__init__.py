"""Processes, here or elsewhere, that train for a coordinator."""
