"""The user's code: fetched, unpacked and installed, in a process of its own."""
