"""Gates: the rules by which a record becomes a decision. ``default.toml`` is the table."""
