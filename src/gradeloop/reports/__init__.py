"""Pages that explain verdicts: one HTML file that works from disk."""
