"""The steps of a run, one file each, from artefacts on disk to artefacts on disk.

A step that is done, from the same inputs, is not done again. Each takes the
opened run and returns nothing; what it found is in its `stage.json`.
"""
