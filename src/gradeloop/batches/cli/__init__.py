"""Commands on batches, and what the terminal shows of them."""
