"""Commands on suites and on two batches side by side."""
