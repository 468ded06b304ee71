"""Keys that this package adds to state dicts, beside those of the model and the optimizer."""

PARTIAL = "_smp_is_partial"
"""the key of a state dict that says whether other ranks have more of it"""
COPIES = "_smp_copies"
"""the key of an optimizer's local state dict with the numbers of parameters whose state another rank has as well"""
