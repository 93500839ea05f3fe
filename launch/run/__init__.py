"""What the steps of a run share: where it lies, what is done, what is open."""
