"""A real Chromium before a real cluster."""
