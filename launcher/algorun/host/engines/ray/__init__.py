"""This host's part of a Ray cluster."""
