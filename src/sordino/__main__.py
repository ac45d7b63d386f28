"""``python -m sordino`` is the command line."""

from sordino.cli.main import main

if __name__ == "__main__":
    main()
