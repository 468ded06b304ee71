"""The commands that people call at home: simulate and doctor."""
