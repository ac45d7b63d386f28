"""``python -m sordino.together.secure create PATH`` makes the environment of the SPU engine."""

import sys

from sordino.together.secure._spu_engine import main

main(sys.argv[1:])
