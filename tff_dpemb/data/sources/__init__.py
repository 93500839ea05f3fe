"""Sources of images: one module each, all write user stores."""
