"""Measured claims: every figure in the docs comes from one of these."""
