"""Alembic's folder: one file for each change of the schema, applied in one transaction when a store is opened."""
