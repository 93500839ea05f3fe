"""Where a round runs: local or other machines, CPU, GPU or TPU."""
