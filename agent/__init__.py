"""The agent daemon: pulls runs from the master, has them run by the shepherd, reports."""
