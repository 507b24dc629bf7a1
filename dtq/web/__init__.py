"""HTTP: the API, its description, health, and the web server's configuration."""
