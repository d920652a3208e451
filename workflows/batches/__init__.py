"""The workflows of batches and judgements."""
