"""What this machine needs, and what it lacks."""
