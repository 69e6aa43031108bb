"""Where what is hostile may connect to, and the proxy through which alone it does."""
