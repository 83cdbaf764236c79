"""The store: verbs of the domain over a database; no SQL outside this folder."""
