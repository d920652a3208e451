"""Deterministic: the thread and its loop."""
