"""Network access of untrusted code: the allowed destinations, and the only way out, a proxy."""
