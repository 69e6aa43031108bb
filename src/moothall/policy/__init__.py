"""Policy engines: Rego in this process, or an OPA server."""
