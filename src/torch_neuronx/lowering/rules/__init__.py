"""One file per operator family. Every module here is imported by ``table.load_rules``."""
