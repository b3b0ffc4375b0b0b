"""The locks of one version in memory, and finding those that apply to a request.

Pure and immutable: an update makes the next view. Fetching updates is in `gatekeeper.feed`.
"""
