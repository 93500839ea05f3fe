"""Beam jobs: embed, sum, release, publish."""
