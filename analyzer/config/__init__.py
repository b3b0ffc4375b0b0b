"""The configuration's file, environment and secret files: read whole, with every fault at once."""
