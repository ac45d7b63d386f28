"""All benchmarks: ``python -m benchmarks [folder of the peers' environments]``."""

from __future__ import annotations

import os
import sys

from benchmarks import mnist, noise, recipes, scale, speed

if __name__ == "__main__":
    scale.main()
    recipes.main()
    noise.main()
    speed.main(*sys.argv[1:])
    if "SORDINO_DATA" in os.environ:
        mnist.main()
    else:
        print("mnist: skipped; set SORDINO_DATA to a folder that holds mnist/")
