"""Exports: the backbone as artefacts that answer without training code."""
