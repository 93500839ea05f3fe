"""The gRPC server: embeds images and finds their nearest neighbours."""
