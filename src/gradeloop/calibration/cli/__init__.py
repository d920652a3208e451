"""Commands that judge, and that measure judges."""
