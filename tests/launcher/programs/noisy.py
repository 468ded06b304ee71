"""Two streams, long and short lines, as fast as they go."""

import os
import sys

rank = os.environ["RANK"]
for number in range(20_000):
    print(f"<{rank}:{number}:{'x' * (number % 97)}>")
    if number % 10 == 0:
        print(f"<{rank}:err:{number}>", file=sys.stderr)
