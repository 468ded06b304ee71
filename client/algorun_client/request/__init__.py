"""A finished request: its types, its text, its names, and SageMaker's limits on it. Pure.

`model` has the types that the rooms above share.
"""
