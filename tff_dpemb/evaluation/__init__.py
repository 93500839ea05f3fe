"""Embeddings and labels to figures: exact, streamed, NumPy only."""
