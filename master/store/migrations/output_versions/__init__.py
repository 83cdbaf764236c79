"""The changes of the output database's schema, oldest first; a released one is never edited."""
