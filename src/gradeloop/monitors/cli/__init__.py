"""Commands on monitors."""
