"""What alembic runs to migrate a store: the migrations, on the connection and in the transaction that it was given."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
