"""REST, one blueprint a noun."""
