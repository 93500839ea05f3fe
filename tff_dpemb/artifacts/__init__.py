"""Files written whole or not at all, their digests and their manifests."""
