"""Measurements of how far a judge can be trusted."""
