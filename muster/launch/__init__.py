"""What `muster up` is made of: preparing a data directory, starting the daemons and keeping them running."""
