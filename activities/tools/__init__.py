"""Evidence tools: functions that a grader can call, or that decide a criterion."""
