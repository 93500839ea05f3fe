"""The document that goes with each release, and its verification."""
