"""Two batches side by side: what regressed, what improved, and whether chance explains it."""
