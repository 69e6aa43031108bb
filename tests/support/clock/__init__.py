"""`clock.*`: a family of tools in one folder, as another one would be written."""
