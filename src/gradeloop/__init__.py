"""Say what done looks like; gradeloop drives the work until an independent judge agrees."""
