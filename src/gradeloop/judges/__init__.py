"""Judges: a rubric and a grader made callable on a finished run of an agent, without the loop."""
