"""The durable, append-only list of noise draws and releases."""
