"""Measurements of how far a judge can be trusted."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
"""Templates, styles and scripts of the pages."""
