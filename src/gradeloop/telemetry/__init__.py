"""Logs, health, metrics and traces of a running gradeloop."""
