"""Pages of batches and judgements, and what is read for them."""
