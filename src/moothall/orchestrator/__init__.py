"""The deliberation service, requests, registered councils, conversations and forks."""
