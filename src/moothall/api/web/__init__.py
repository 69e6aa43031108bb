"""The product owner's page: HTML of the HTTP door, made on the server."""
