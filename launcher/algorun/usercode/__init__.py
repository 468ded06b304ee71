"""Fetches, unpacks and installs the user's code, in a process of its own."""
