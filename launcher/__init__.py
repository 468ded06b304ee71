"""algorun: starts training on every host of a SageMaker job. Standard library only."""

__version__ = "0.1.0"
