"""What an attack proves about epsilon, from below."""
