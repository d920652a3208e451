"""The typed client: threads started, read, steered and listed."""
