"""``python -m sordino`` is the command line."""

from sordino.app import main

if __name__ == "__main__":
    main()
