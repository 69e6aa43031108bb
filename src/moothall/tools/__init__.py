"""The catalogue of tools: the name, arguments, output and limits of each."""
