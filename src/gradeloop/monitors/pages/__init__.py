"""Pages of monitors."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
"""Templates, styles and scripts of the pages."""
