"""The `muster` command, the Python client and the launcher of the daemons."""
