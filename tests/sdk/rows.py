"""The table: what users of the SageMaker SDKs do with the image, and what they must get."""

import rows_v2
import rows_v3
from row import Row

__all__ = ["ROWS", "Row"]

ROWS = [*rows_v2.ROWS, *rows_v3.ROWS]
