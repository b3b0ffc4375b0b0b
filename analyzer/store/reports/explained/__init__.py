"""The state of one caller, and the outcomes of locks."""
