"""One plan, and what can be said of it before it runs."""
