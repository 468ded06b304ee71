"""Draws a RunReport as one HTML file: its data, style and scripts are in it, and it asks for nothing else."""
