"""What clips, samples and adds noise, as values."""
