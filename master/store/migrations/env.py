"""How Alembic runs a migration: on the connection of `migrate`, inside the transaction that it has begun."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
