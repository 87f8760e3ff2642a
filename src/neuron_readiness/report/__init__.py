"""A record for people: one HTML file that needs no network, and Markdown."""
