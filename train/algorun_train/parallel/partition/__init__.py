"""Decides which segments each stage gets: costs, bytes, the search, and the file that keeps the decision."""
