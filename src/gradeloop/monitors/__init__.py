"""Monitors: production judged as it happens, a sample of the runs of a source at a time."""
