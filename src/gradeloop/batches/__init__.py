"""Batches: many cases, what the store keeps of them, and their results."""
