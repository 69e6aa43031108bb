"""The web page for product owners: HTML of the HTTP API, rendered on the server."""
