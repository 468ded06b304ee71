"""The ranks of this host: their start, their stop, and what they say of themselves."""
