"""Permission to ask over HTTP: tokens, and sessions of browsers that signed in with a token."""
