# Untyped upstream. Only what the package uses is declared, and all of it as Any.
__version__: str
