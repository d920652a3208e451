"""The migrations of the store's tables, which alembic runs."""
