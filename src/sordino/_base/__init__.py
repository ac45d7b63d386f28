"""How are things raised, named, written and kept? The foundation; private."""
