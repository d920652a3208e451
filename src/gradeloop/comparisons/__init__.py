"""Two batches beside each other: what got worse, what got better, and what chance does; on a terminal, as JSON and as a page."""
