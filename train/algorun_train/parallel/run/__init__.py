"""Runs a model whose stages lie on several ranks."""
