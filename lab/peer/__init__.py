"""What a user would pick instead: `temporalio-deepagents` with deepagents' RubricMiddleware, in a venv of its own."""
