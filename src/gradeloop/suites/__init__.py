"""Suites: files that say what is asked, who drafts and how each answer is judged, read into the cases of a batch."""
