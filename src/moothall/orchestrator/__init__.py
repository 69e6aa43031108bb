"""The deliberation service: requests, their planning and forks, and registered councils."""
