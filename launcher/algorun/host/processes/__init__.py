"""The processes of this host, and who ends them."""
