"""Run by alembic to migrate a store: the migrations, on the connection and in the transaction that it was given."""

from alembic import context

from gradeloop.store.upgrade import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], render_as_batch=True, version_table=VERSION_TABLE)
context.run_migrations()
