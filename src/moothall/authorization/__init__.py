"""All that stands between a request and a tool."""
