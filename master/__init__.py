"""The master: keeps tasks and runs, hands them to whoever pulls. One process, one store."""
