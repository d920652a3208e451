"""The store of batches, judgements and registered rubrics: SQLite or PostgreSQL."""
