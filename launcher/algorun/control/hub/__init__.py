"""The hub: one host's judgement for all. Pure."""
