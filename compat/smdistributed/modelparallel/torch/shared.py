"""What several files of this package use of the package `train`."""

from algorun import training

UserError = training.load("errors").UserError
trees = training.load("parallel.trees")

PARTIAL = "_smp_is_partial"
"""the key of a state dict that says whether other ranks have more of it"""
COPIES = "_smp_copies"
"""the key of an optimizer's local state dict with the numbers of parameters whose state another rank has as well"""
