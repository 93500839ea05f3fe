"""The bundled data set: characters as identities, drawn by many fonts."""
