"""Pages of batches and judgements, and what is read for them."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
"""Templates, styles and scripts of the pages."""
