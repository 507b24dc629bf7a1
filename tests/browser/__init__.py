"""The dashboard in a real browser, over a seeded server."""
