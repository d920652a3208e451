"""Pages that explain verdicts: one HTML file that works from disk, for a run, a batch, judgements, or two batches beside each other."""
