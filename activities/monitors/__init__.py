"""The activities of monitors."""
