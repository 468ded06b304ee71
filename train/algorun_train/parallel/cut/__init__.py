"""Cuts any module into segments: at the calls of its modules, at its list of layers, or not at all."""
