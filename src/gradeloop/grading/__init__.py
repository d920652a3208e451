"""Pure functions of grading: prompts, verdicts, checks, scores. No I/O, no Temporal."""
