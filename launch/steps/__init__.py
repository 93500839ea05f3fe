"""One module a step of a run: from artefacts on disk to artefacts on disk."""
