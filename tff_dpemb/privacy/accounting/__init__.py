"""From what was drawn to what it costs: events, accountant, profile."""
