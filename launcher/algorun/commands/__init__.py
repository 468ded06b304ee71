"""The commands for a machine of your own: simulate and doctor."""
