"""DP clustering of embeddings: user-level Gaussian mixtures, in NumPy."""
