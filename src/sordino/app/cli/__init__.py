"""The commands of ``sordino``, one module each."""
