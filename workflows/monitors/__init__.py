"""The workflows of monitors."""
