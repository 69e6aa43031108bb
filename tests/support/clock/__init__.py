"""`clock.*`: an example tool family in one folder."""
