"""Evidence tools: what a grader can look at or run, and what can decide a criterion alone."""
