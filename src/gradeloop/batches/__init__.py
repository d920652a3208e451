"""Many cases at once: what they are, what is kept of them, what they came to, and how that is told."""
