"""The webserver: REST (later pages) in front of the master; holds no state that matters."""
