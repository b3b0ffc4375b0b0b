"""What an analyzer answers over HTTP. It reads; nothing it does changes a count or a lock."""
