"""Pages of monitors."""
